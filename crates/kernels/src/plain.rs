//! Types whose memory may be looked at as bytes, and the other way round.

/// Types that every bit pattern is a value of, without padding.
pub trait Plain: Copy + Send + Sync + 'static + private::Sealed {}

mod private {
    /// Keeps [`super::Plain`] to the types below.
    pub trait Sealed {}
}

macro_rules! plain {
    ($($t:ty),*) => { $(impl private::Sealed for $t {} impl Plain for $t {})* };
}
plain!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, f32, f64);

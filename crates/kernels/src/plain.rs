//! Types that can be reinterpreted as bytes and back.

/// Types without padding for which every bit pattern is valid.
pub trait Plain: Copy + Send + Sync + 'static + private::Sealed {}

mod private {
    /// Restricts [`super::Plain`] to the types below.
    pub trait Sealed {}
}

macro_rules! plain {
    ($($t:ty),*) => { $(impl private::Sealed for $t {} impl Plain for $t {})* };
}
plain!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, f32, f64);

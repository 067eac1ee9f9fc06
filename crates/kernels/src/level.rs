//! Selection of the vector instructions that kernels use.

/// A set of machine instructions that kernels are compiled for. All levels give the same bits, except for products of
/// floats without a fused multiply-add.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Instructions of every machine of the architecture (SSE2 on x86-64, NEON on AArch64).
    Baseline,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 F, DQ, VL and BW.
    Avx512,
}

impl Level {
    /// The best level of this machine.
    pub fn detect() -> Level {
        #[cfg(target_arch = "x86_64")]
        {
            let fma = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if fma
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bw")
            {
                return Level::Avx512;
            }
            if fma {
                return Level::Avx2;
            }
        }
        Level::Baseline
    }

    /// The levels that this machine can run, baseline first.
    pub fn available() -> Vec<Level> {
        let best = Level::detect();
        [Level::Baseline, Level::Avx2, Level::Avx512].into_iter().filter(|l| *l <= best).collect()
    }

    /// This level, or the machine's best if that is lower.
    pub fn supported(self) -> Level {
        self.min(Level::detect())
    }
}

/// Instantiates a generic `#[inline(always)]` body for every level and names a function that picks one.
///
/// `leveled!(pick, fn body<O: Bound<A>, A>(d: *mut u8, a: *const u8) as Type)`: `pick::<O, A>(level)` is a function
/// pointer of that type.
macro_rules! leveled {
    ($pick:ident, $body:ident <$($g:ident $(: $bound:path)?),*> ($($p:ident : $t:ty),*) as $fnty:ty) => {
        fn $pick<$($g $(: $bound)?),*>(level: $crate::Level) -> $fnty {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")]
            unsafe fn avx512<$($g $(: $bound)?),*>($($p: $t),*) {
                // SAFETY: the caller upholds the contract of the body, on a machine that has the level.
                unsafe { $body::<$($g),*>($($p),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2<$($g $(: $bound)?),*>($($p: $t),*) {
                // SAFETY: the caller upholds the contract of the body, on a machine that has the level.
                unsafe { $body::<$($g),*>($($p),*) }
            }
            unsafe fn baseline<$($g $(: $bound)?),*>($($p: $t),*) {
                // SAFETY: the caller upholds the contract of the body.
                unsafe { $body::<$($g),*>($($p),*) }
            }
            match level {
                #[cfg(target_arch = "x86_64")]
                $crate::Level::Avx512 => avx512::<$($g),*>,
                #[cfg(target_arch = "x86_64")]
                $crate::Level::Avx2 => avx2::<$($g),*>,
                _ => baseline::<$($g),*>,
            }
        }
    };
}
pub(crate) use leveled;

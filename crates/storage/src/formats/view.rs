//! A file as its parser sees it: bytes that are there, or a range to fetch before the parser runs again.

use crate::source::error::SourceError;
use crate::source::store::{LocalFile, METADATA_BYTES_MAX, Store};
use bytes::Bytes;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that are fetched together at least.
pub(crate) const PAGE: u64 = 64 << 10;

/// Upper bound on the bytes of one further fetch: each fetch is twice the one before.
const FETCH_MAX: u64 = 1 << 20;

/// Upper bound on the fetches for one run of a parser.
const FETCHES_MAX: usize = 4096;

/// Upper bound on the bytes of pages that are kept of a file once it is open.
const KEPT_BYTES_MAX: u64 = 32 << 20;

/// Why a parser stopped.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It needs these bytes.
    Missing(Range<u64>),
    /// It needs these bytes, and those that follow are of no use to it.
    MissingAlone(Range<u64>),
    /// The file is invalid at this offset.
    Bad { at: u64, reason: String },
    /// The file uses this feature of its format, which is not supported.
    Unsupported(String),
    /// The storage failed.
    Source(Box<SourceError>),
}

impl Fault {
    pub(crate) fn bad(at: u64, reason: impl Into<String>) -> Fault {
        Fault::Bad { at, reason: reason.into() }
    }

    pub(crate) fn unsupported(what: impl Into<String>) -> Fault {
        Fault::Unsupported(what.into())
    }
}

impl From<SourceError> for Fault {
    fn from(e: SourceError) -> Self {
        Fault::Source(Box::new(e))
    }
}

/// The bytes of a file.
pub(crate) struct View<'a> {
    bytes: Held<'a>,
    len: u64,
}

enum Held<'a> {
    /// All of it.
    Whole(&'a [u8]),
    /// Pages by their number.
    Pages(&'a BTreeMap<u64, Bytes>),
    Local(&'a Store, &'a LocalFile),
}

impl<'a> View<'a> {
    /// A file in memory.
    pub(crate) fn whole(bytes: &'a [u8]) -> View<'a> {
        View { len: bytes.len() as u64, bytes: Held::Whole(bytes) }
    }

    /// A file of `len` bytes of which only some pages are there, by their number.
    #[cfg(test)]
    pub(crate) fn paged(pages: &'a BTreeMap<u64, Bytes>, len: u64) -> View<'a> {
        View { bytes: Held::Pages(pages), len }
    }

    /// Length of the file.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The bytes from `offset` on.
    ///
    /// # Errors
    /// [`Fault::Bad`] if the file ends before, [`Fault::Missing`] if they were not fetched yet.
    pub(crate) fn read(&self, offset: u64, bytes: u64) -> Result<Cow<'a, [u8]>, Fault> {
        let end = offset.checked_add(bytes).filter(|&end| end <= self.len).ok_or_else(|| {
            Fault::bad(
                offset,
                format!("{bytes} bytes are expected, the file ends at byte {}", self.len),
            )
        })?;
        if bytes > METADATA_BYTES_MAX {
            return Err(Fault::bad(
                offset,
                format!("metadata of {bytes} bytes, at most {METADATA_BYTES_MAX} are read"),
            ));
        }
        if bytes == 0 {
            return Ok(Cow::Borrowed(&[]));
        }
        match self.bytes {
            Held::Whole(all) => Ok(Cow::Borrowed(&all[offset as usize..end as usize])),
            Held::Local(store, file) => {
                let mut out = vec![0; bytes as usize];
                store.read_exact_at(file, &mut out, offset)?;
                Ok(Cow::Owned(out))
            }
            Held::Pages(pages) => {
                let (first, last) = (offset / PAGE, (end - 1) / PAGE);
                if let Some(missing) = (first..=last).find(|n| !pages.contains_key(n)) {
                    return Err(Fault::Missing((missing * PAGE).max(offset)..end));
                }
                let part = |n: u64| -> &'a [u8] {
                    let page = &pages[&n];
                    let (start, stop) = (offset.max(n * PAGE), end.min((n + 1) * PAGE));
                    &page[(start - n * PAGE) as usize..(stop - n * PAGE) as usize]
                };
                if first == last {
                    return Ok(Cow::Borrowed(part(first)));
                }
                Ok(Cow::Owned((first..=last).flat_map(|n| part(n).iter().copied()).collect()))
            }
        }
    }

    /// As [`View::read`], of bytes that are followed by many that are not read: nothing is fetched ahead.
    pub(crate) fn read_alone(&self, offset: u64, bytes: u64) -> Result<Cow<'a, [u8]>, Fault> {
        self.read(offset, bytes).map_err(|fault| match fault {
            Fault::Missing(range) => Fault::MissingAlone(range),
            fault => fault,
        })
    }

    /// The bytes from `offset` on, as many as there are up to `bytes`.
    pub(crate) fn read_up_to(&self, offset: u64, bytes: u64) -> Result<Cow<'a, [u8]>, Fault> {
        self.read(offset, bytes.min(self.len.saturating_sub(offset)))
    }
}

/// The pages that were fetched of one file, for its parsers.
#[derive(Debug)]
pub(crate) struct Pages {
    /// The file, as a key of its store.
    key: String,
    /// Its format, for messages.
    format: &'static str,
    len: u64,
    held: Mutex<BTreeMap<u64, Bytes>>,
}

impl Pages {
    /// The pages of a file of `len` bytes whose first bytes are `head`.
    pub(crate) fn new(key: &str, format: &'static str, len: u64, head: &Bytes) -> Arc<Pages> {
        let mut held = BTreeMap::new();
        put(&mut held, 0, head, len);
        Arc::new(Pages { key: key.into(), format, len, held: Mutex::new(held) })
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Runs a parser until it has the bytes that it needs.
    pub(crate) async fn run<T>(
        &self,
        store: &Store,
        parse: impl Fn(&View<'_>) -> Result<T, Fault>,
    ) -> Result<T, SourceError> {
        if let Some(file) = store.local_file(&self.key)? {
            if file.len != self.len {
                return Err(SourceError::Changed { what: store.show(&self.key) });
            }
            let view = View { bytes: Held::Local(store, &file), len: self.len };
            let done = crate::disk::wait(|| parse(&view)).map_err(|f| self.error(store, f))?;
            store.check_same(&file)?;
            return Ok(done);
        }
        let mut pages = self.held.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut fetched = 0;
        for turn in 0..FETCHES_MAX {
            let (missing, ahead) = match parse(&View { bytes: Held::Pages(&pages), len: self.len })
            {
                Err(Fault::Missing(range)) => (range, (PAGE << turn.min(4)).min(FETCH_MAX)),
                Err(Fault::MissingAlone(range)) => (range, PAGE),
                done => {
                    self.keep(pages);
                    return done.map_err(|fault| self.error(store, fault));
                }
            };
            let start = missing.start / PAGE * PAGE;
            let end = missing.end.max(start + ahead).next_multiple_of(PAGE).min(self.len);
            let got = store.get_ranges(&self.key, std::slice::from_ref(&(start..end))).await?;
            let got = got.and_then(|mut parts| parts.pop());
            let changed = || SourceError::Changed { what: store.show(&self.key) };
            let got = got.filter(|b| b.len() as u64 == end - start).ok_or_else(changed)?;
            fetched += got.len() as u64;
            if fetched > METADATA_BYTES_MAX {
                let reason =
                    format!("its metadata are larger than the {METADATA_BYTES_MAX} bytes read");
                return Err(self.error(store, Fault::bad(missing.start, reason)));
            }
            put(&mut pages, start, &got, self.len);
        }
        let reason = format!("its metadata lie in more than {FETCHES_MAX} parts of the file");
        Err(self.error(store, Fault::bad(0, reason)))
    }

    /// Keeps pages for later runs, within bounds.
    fn keep(&self, pages: BTreeMap<u64, Bytes>) {
        if pages.len() as u64 * PAGE <= KEPT_BYTES_MAX {
            *self.held.lock().unwrap_or_else(PoisonError::into_inner) = pages;
        }
    }

    pub(crate) fn error(&self, store: &Store, fault: Fault) -> SourceError {
        let path = store.show(&self.key);
        match fault {
            Fault::Source(e) => *e,
            Fault::Bad { at, reason } => {
                SourceError::BadFile { path, format: self.format.into(), at, reason }
            }
            Fault::Missing(range) | Fault::MissingAlone(range) => SourceError::BadFile {
                path,
                format: self.format.into(),
                at: range.start,
                reason: "the file ends before".into(),
            },
            Fault::Unsupported(what) => SourceError::UnsupportedFile { path, what },
        }
    }
}

/// Adds the pages of `bytes`, which begin at the page boundary `start`; a part of a page counts only at the end.
fn put(pages: &mut BTreeMap<u64, Bytes>, start: u64, bytes: &Bytes, len: u64) {
    let mut at = 0;
    while at < bytes.len() {
        let end = (at + PAGE as usize).min(bytes.len());
        if end - at == PAGE as usize || start + end as u64 == len {
            pages.insert((start + at as u64) / PAGE, bytes.slice(at..end));
        }
        at = end;
    }
}

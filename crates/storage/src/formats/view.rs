//! A file as its parser sees it: bytes that are available, or a range to fetch before the parser runs again.

use crate::formats::nodes::Nodes;
use crate::formats::parts::Parts;
use crate::lock;
use crate::source::error::SourceError;
use crate::source::store::{LocalFile, METADATA_BYTES_MAX, Store};
use bytes::Bytes;
use std::any::Any;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Bytes that are fetched together at least.
pub(crate) const PAGE: u64 = 64 << 10;

/// Upper bound on the bytes of one further fetch: each fetch is twice the one before.
const FETCH_MAX: u64 = 1 << 20;

/// Upper bound on the fetches after which a parser starts from the beginning.
const FETCHES_MAX: usize = 4096;

/// Upper bound on all fetches for a parser.
const TURNS_MAX: usize = 1 << 16;

/// Upper bound on the ranges that are fetched besides the missing one.
const HINTS_MAX: usize = 256;

/// Upper bound on the ranges that are fetched without the bytes that follow them.
pub(crate) const SPOTS_MAX: usize = 2048;

/// Upper bound on the bytes of one request for several spots.
const JOINED_MAX: u64 = 8 << 20;

/// Bytes between spots that are fetched rather than left out, at the cost of one more request: of few bytes, of many.
const GAPS: [u64; 2] = [PAGE / 4, PAGE / 16];

/// Upper bound on the bytes of pages that are retained of a file once it is open.
const KEPT_BYTES_MAX: u64 = 32 << 20;

/// Why a parser stopped.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The parser needs these bytes.
    Missing(Range<u64>),
    /// The parser needs the first of these bytes now and the others soon, but none of the bytes that follow.
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

/// The findings of a parser before it stops for missing bytes.
type Memo = Box<dyn Any + Send>;

/// The bytes of a file.
pub(crate) struct View<'a> {
    bytes: ViewBytes<'a>,
    len: u64,
    /// Offsets in rising order at which parts of the file may begin.
    starts: &'a [u64],
    /// Ranges that the parser will need, besides the one at which it stopped.
    hints: RefCell<Vec<Range<u64>>>,
    /// Ranges that the parser will need, and that are fetched without the bytes that follow them.
    spots: RefCell<Vec<Range<u64>>>,
    memo: Cell<Option<Memo>>,
}

enum ViewBytes<'a> {
    /// All of it.
    Whole(&'a [u8]),
    Parts(&'a Parts),
    /// A file on a disk. If the parser looks up chunks, also the cached parts of its index.
    Local(&'a Store, &'a LocalFile, Option<&'a Nodes>),
}

impl<'a> View<'a> {
    /// A file in memory.
    pub(crate) fn whole(bytes: &'a [u8]) -> View<'a> {
        View::new(ViewBytes::Whole(bytes), bytes.len() as u64)
    }

    fn new(bytes: ViewBytes<'a>, len: u64) -> View<'a> {
        let (hints, spots, memo) = Default::default();
        View { bytes, len, starts: &[], hints, spots, memo }
    }

    /// Length of the file.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Offsets in rising order at which parts of the file may begin, as a file beside it says.
    pub(crate) fn starts(&self) -> &[u64] {
        self.starts
    }

    /// The findings that the parser [remembered](View::remember) when it last stopped.
    pub(crate) fn resume<T: 'static>(&self) -> Option<T> {
        self.memo.take()?.downcast().ok().map(|memo| *memo)
    }

    /// Stores the parser's findings until the missing bytes are available.
    pub(crate) fn remember<T: Send + 'static>(&self, found: T) {
        self.memo.set(Some(Box::new(found)));
    }

    /// Says that these bytes are needed, too. What is missing of them is fetched together with the range at which the
    /// parser stops next, so that siblings of a tree cost one wait and not one each.
    pub(crate) fn will_read(&self, offset: u64, bytes: u64) {
        self.hint(offset, bytes, (&self.hints, HINTS_MAX));
    }

    /// Like [`View::will_read`], for bytes that are followed by many that are not read.
    pub(crate) fn will_read_alone(&self, offset: u64, bytes: u64) {
        self.hint(offset, bytes, (&self.spots, SPOTS_MAX));
    }

    fn hint(&self, offset: u64, bytes: u64, (to, max): (&RefCell<Vec<Range<u64>>>, usize)) {
        let end = offset.saturating_add(bytes).min(self.len);
        if let ViewBytes::Parts(parts) = self.bytes
            && offset < end
            && parts.missing(offset..end).is_some()
        {
            let mut hints = to.borrow_mut();
            if hints.len() < max {
                hints.push(offset..end);
            }
        }
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
            ViewBytes::Whole(all) => Ok(Cow::Borrowed(&all[offset as usize..end as usize])),
            ViewBytes::Local(store, file, nodes) => {
                let of = nodes.map(|nodes| (nodes, file.version_text()));
                let kept =
                    of.as_ref().and_then(|(nodes, version)| nodes.get(version, offset, bytes));
                if let Some(kept) = kept {
                    return Ok(Cow::Owned(kept));
                }
                let mut out = vec![0; bytes as usize];
                store.read_exact_at(file, &mut out, offset)?;
                if let Some((nodes, version)) = of {
                    nodes.keep(&version, offset, &out);
                }
                Ok(Cow::Owned(out))
            }
            ViewBytes::Parts(parts) => {
                parts.read(offset..end).map_err(|missing| Fault::Missing(missing..end))
            }
        }
    }

    /// `bytes` bytes from `offset` on, and as many of the next ones, up to `ahead` in all, as there are at no cost. If
    /// they are not there, all `ahead` are fetched, but nothing that follows.
    pub(crate) fn read_alone(
        &self,
        offset: u64,
        bytes: u64,
        ahead: u64,
    ) -> Result<Cow<'a, [u8]>, Fault> {
        let more = bytes.max(ahead).min(self.len.saturating_sub(offset));
        match self.bytes {
            ViewBytes::Parts(parts) => {
                let rest = parts.rest(offset);
                if bytes > 0 && rest.len() as u64 >= bytes {
                    return Ok(Cow::Borrowed(&rest[..rest.len().min(more as usize)]));
                }
                self.read(offset, bytes).map_err(|fault| match fault {
                    Fault::Missing(range) => {
                        Fault::MissingAlone(range.start..range.end.max(offset + more))
                    }
                    fault => fault,
                })
            }
            // If fewer than `bytes` bytes are left, `read` fails.
            _ => self.read(offset, more.max(bytes)),
        }
    }

    /// The bytes from `offset` on, as many as there are up to `bytes`.
    pub(crate) fn read_up_to(&self, offset: u64, bytes: u64) -> Result<Cow<'a, [u8]>, Fault> {
        self.read(offset, bytes.min(self.len.saturating_sub(offset)))
    }
}

/// The runs of a parser over the bytes fetched so far.
#[derive(Default)]
struct Runs {
    parts: Parts,
    memo: Option<Memo>,
    /// Fetches, and the fetches after which the parser started from the beginning.
    turns: usize,
    anew: usize,
    fetched: u64,
}

impl Runs {
    /// Runs the parser. Returns its result, or the ranges to fetch before the next run.
    fn next<T>(
        &mut self,
        len: u64,
        starts: &[u64],
        parse: impl Fn(&View<'_>) -> Result<T, Fault>,
    ) -> Result<Result<T, Fault>, Vec<Range<u64>>> {
        let memo = Cell::new(self.memo.take());
        let view = View { starts, memo, ..View::new(ViewBytes::Parts(&self.parts), len) };
        let (missing, is_alone) = match parse(&view) {
            Err(Fault::Missing(range)) => (range, false),
            Err(Fault::MissingAlone(range)) => (range, true),
            done => return Ok(done),
        };
        let View { hints, spots, memo, .. } = view;
        self.memo = memo.into_inner();
        if self.fetched > METADATA_BYTES_MAX {
            let reason =
                format!("its metadata are larger than the {METADATA_BYTES_MAX} bytes read");
            return Ok(Err(Fault::bad(0, reason)));
        }
        if self.turns == TURNS_MAX || self.anew == FETCHES_MAX {
            let reason = format!("its metadata lie in more than {} parts of the file", self.turns);
            return Ok(Err(Fault::bad(0, reason)));
        }
        let (mut pages, mut spots) = (hints.into_inner(), spots.into_inner());
        if is_alone {
            spots.push(missing.start..missing.end.min(len));
        } else {
            let ahead = (PAGE << self.turns.min(4)).min(FETCH_MAX);
            pages.extend([missing.start..missing.start.saturating_add(ahead), missing]);
        }
        self.turns += 1;
        self.anew += usize::from(self.memo.is_none());
        let wanted = joined(pages, spots, len, METADATA_BYTES_MAX - self.fetched);
        self.fetched += bytes_of(&wanted);
        Err(wanted)
    }
}

/// The bytes that were fetched of one file, for its parsers.
#[derive(Debug)]
pub(crate) struct Pages {
    /// The file, as a key of its store.
    key: String,
    /// Its format, for messages.
    format: &'static str,
    len: u64,
    /// See [`View::starts`].
    starts: Vec<u64>,
    held: Mutex<Parts>,
    /// Of a local file.
    nodes: Nodes,
}

impl Pages {
    /// A file of `len` bytes whose first bytes are `head`, with the offsets that [`View::starts`] returns.
    pub(crate) fn new(
        key: &str,
        format: &'static str,
        len: u64,
        head: &Bytes,
        starts: Vec<u64>,
    ) -> Arc<Pages> {
        let mut held = Parts::default();
        held.add(0, head);
        let (held, nodes) = (Mutex::new(held), Nodes::default());
        Arc::new(Pages { key: key.into(), format, len, starts, held, nodes })
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
        self.run_with(store, None, parse).await
    }

    /// Like [`Pages::run`], for a parser that many operands run: the parts of a local file that it reads are cached.
    pub(crate) async fn look_up<T>(
        &self,
        store: &Store,
        parse: impl Fn(&View<'_>) -> Result<T, Fault>,
    ) -> Result<T, SourceError> {
        self.run_with(store, Some(&self.nodes), parse).await
    }

    async fn run_with<T>(
        &self,
        store: &Store,
        nodes: Option<&Nodes>,
        parse: impl Fn(&View<'_>) -> Result<T, Fault>,
    ) -> Result<T, SourceError> {
        if let Some(file) = store.local_file(&self.key)? {
            if file.len != self.len {
                return Err(SourceError::Changed { what: store.show(&self.key) });
            }
            let view = View::new(ViewBytes::Local(store, &file, nodes), self.len);
            let done = crate::disk::wait(|| parse(&view)).map_err(|f| self.error(store, f));
            let done = done.and_then(|done| store.check_same(&file).map(|()| done));
            // Parts that were read while the file changed may belong to no version.
            if let (Err(_), Some(nodes)) = (&done, nodes) {
                nodes.forget();
            }
            return done;
        }
        let parts = lock(&self.held).clone();
        let mut runs = Runs { parts, ..Runs::default() };
        loop {
            let wanted = match runs.next(self.len, &self.starts, &parse) {
                Err(wanted) => wanted,
                Ok(done) => {
                    self.keep(runs.parts);
                    return done.map_err(|fault| self.error(store, fault));
                }
            };
            let got = store.get_ranges(&self.key, &wanted).await?;
            let changed = || SourceError::Changed { what: store.show(&self.key) };
            for (range, got) in wanted.iter().zip(got.ok_or_else(changed)?) {
                if got.len() as u64 != range.end - range.start {
                    return Err(changed());
                }
                runs.parts.add(range.start, &got);
            }
        }
    }

    /// Keeps parts for later runs, within bounds.
    fn keep(&self, parts: Parts) {
        if parts.bytes() <= KEPT_BYTES_MAX {
            *lock(&self.held) = parts;
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

/// Ranges to fetch, in order: whole pages that cover `pages`, and `spots` as they are, with the gaps between them as far
/// as `left` bytes allow it.
fn joined(pages: Vec<Range<u64>>, spots: Vec<Range<u64>>, len: u64, left: u64) -> Vec<Range<u64>> {
    let whole = |r: Range<u64>| r.start / PAGE * PAGE..r.end.next_multiple_of(PAGE).min(len);
    let has_spots = !spots.is_empty();
    let mut all: Vec<Range<u64>> = pages.into_iter().map(whole).chain(spots).collect();
    all.retain(|r| r.start < r.end);
    all.sort_by_key(|r| r.start);
    let with = |gap: u64| {
        let mut out: Vec<Range<u64>> = Vec::new();
        for r in &all {
            match out.last_mut() {
                Some(last)
                    if r.start <= last.end
                        || r.start - last.end <= gap && r.end - last.start <= JOINED_MAX =>
                {
                    last.end = last.end.max(r.end);
                }
                _ => out.push(r.clone()),
            }
        }
        out
    };
    if !has_spots {
        return with(0);
    }
    let wide = with(GAPS[0]);
    if bytes_of(&wide) <= left / 4 { wide } else { with(GAPS[1]) }
}

fn bytes_of(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|r| r.end - r.start).sum()
}

/// The cost of running a parser to its end.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Took {
    pub(crate) turns: usize,
    pub(crate) requests: usize,
    pub(crate) bytes: u64,
}

/// Runs a parser as [`Pages::run`] does on a remote file of which the first `head` bytes are available.
#[cfg(test)]
pub(crate) fn in_turns<T>(
    all: &Bytes,
    head: (u64, &[u64]),
    parse: impl Fn(&View<'_>) -> Result<T, Fault>,
) -> (Result<T, Fault>, Took) {
    let get = |r: Range<u64>| all.slice(r.start as usize..r.end as usize);
    in_turns_of(all.len() as u64, get, head, parse)
}

/// Like [`in_turns`], for a file of `len` bytes that need not be in memory.
#[cfg(test)]
pub(crate) fn in_turns_of<T>(
    len: u64,
    get: impl Fn(Range<u64>) -> Bytes,
    (head, starts): (u64, &[u64]),
    parse: impl Fn(&View<'_>) -> Result<T, Fault>,
) -> (Result<T, Fault>, Took) {
    let mut runs = Runs::default();
    runs.parts.add(0, &get(0..head.min(len)));
    let mut requests = 0;
    loop {
        match runs.next(len, starts, &parse) {
            Ok(done) => {
                return (done, Took { turns: runs.turns, requests, bytes: runs.fetched });
            }
            Err(wanted) => {
                requests += wanted.len();
                wanted.into_iter().for_each(|r| runs.parts.add(r.start, &get(r)));
            }
        }
    }
}

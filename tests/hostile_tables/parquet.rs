//! Parquet files that a writer with a conscience does not write.
//!
//! Source of the format: parquet.thrift of Apache Parquet, in Thrift's compact protocol.

/// A structure in the compact protocol.
#[derive(Default)]
struct Thrift {
    bytes: Vec<u8>,
    last: u8,
}

impl Thrift {
    fn field(mut self, number: u8, kind: u8) -> Self {
        self.bytes.push((number - self.last) << 4 | kind);
        self.last = number;
        self
    }

    fn varint(mut self, mut n: u64) -> Self {
        while n >= 0x80 {
            self.bytes.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.bytes.push(n as u8);
        self
    }

    fn i32(self, number: u8, n: usize) -> Self {
        self.field(number, 5).varint(n as u64 * 2)
    }

    fn i64(self, number: u8, n: usize) -> Self {
        self.field(number, 6).varint(n as u64 * 2)
    }

    fn text(self, number: u8, text: &str) -> Self {
        let mut this = self.field(number, 8).varint(text.len() as u64);
        this.bytes.extend(text.as_bytes());
        this
    }

    fn part(self, number: u8, part: Thrift) -> Self {
        let mut this = self.field(number, 12);
        this.bytes.extend(part.end());
        this
    }

    /// A list of structures.
    fn list(self, number: u8, parts: Vec<Thrift>) -> Self {
        let mut this = self.field(number, 9);
        this.bytes.push((parts.len() as u8) << 4 | 12);
        parts.into_iter().for_each(|p| this.bytes.extend(p.end()));
        this
    }

    fn end(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

/// The only column of a file, whose values all lie in one page.
struct Column {
    /// Type and codec by their numbers in the format.
    kind: usize,
    codec: usize,
    dictionary: Vec<u8>,
    /// The page as it is stored, and unpacked.
    page: Vec<u8>,
    unpacked: usize,
    values: usize,
}

const INT64: usize = 2;
const BYTE_ARRAY: usize = 6;
const SNAPPY: usize = 1;
const PLAIN: usize = 0;
const RLE: usize = 3;
const RLE_DICTIONARY: usize = 8;

fn file(column: Column) -> Vec<u8> {
    let Column { kind, codec, dictionary, page, unpacked, values } = column;
    let mut bytes = b"PAR1".to_vec();
    if !dictionary.is_empty() {
        let of = Thrift::default().i32(1, 1).i32(2, PLAIN);
        let length = dictionary.len();
        let head = Thrift::default().i32(1, 2).i32(2, length).i32(3, length).part(7, of);
        bytes.extend(head.end());
        bytes.extend(&dictionary);
    }
    let data_at = bytes.len();
    let encoding = if dictionary.is_empty() { PLAIN } else { RLE_DICTIONARY };
    let of = Thrift::default().i32(1, values).i32(2, encoding).i32(3, RLE).i32(4, RLE);
    let head = Thrift::default().i32(1, 0).i32(2, unpacked).i32(3, page.len()).part(5, of);
    bytes.extend(head.end());
    bytes.extend(&page);
    let stored = bytes.len() - 4;

    let mut chunk = Thrift::default().i32(1, kind).field(2, 9);
    chunk.bytes.extend([0x15, encoding as u8 * 2]);
    chunk = chunk.field(3, 9);
    chunk.bytes.extend([0x18, 1, b'v']);
    chunk = chunk.i32(4, codec).i64(5, values).i64(6, unpacked).i64(7, stored).i64(9, data_at);
    if !dictionary.is_empty() {
        chunk = chunk.i64(11, 4);
    }
    let group = Thrift::default()
        .list(1, vec![Thrift::default().i64(2, 4).part(3, chunk)])
        .i64(2, unpacked)
        .i64(3, values);
    let mut named = Thrift::default().i32(1, kind).i32(3, 0).text(4, "v");
    if kind == BYTE_ARRAY {
        // The column is a text.
        named = named.i32(6, 0);
    }
    let schema = vec![Thrift::default().text(4, "m").i32(5, 1), named];
    let footer =
        Thrift::default().i32(1, 1).list(2, schema).i64(3, values).list(4, vec![group]).end();
    bytes.extend(&footer);
    bytes.extend((footer.len() as u32).to_le_bytes());
    bytes.extend(b"PAR1");
    bytes
}

/// Zeros that lie in one page, which unpacks to twenty times its size.
pub(super) fn page_of_zeros(values: usize) -> Vec<u8> {
    let unpacked = values * 8;
    // Snappy: the length, a literal zero, then copies of 64 bytes from one byte before.
    let mut page = Thrift::default().varint(unpacked as u64).bytes;
    page.extend([0, 0]);
    let mut left = unpacked - 1;
    while left > 0 {
        let n = left.min(64);
        page.extend([((n - 1) << 2 | 2) as u8, 1, 0]);
        left -= n;
    }
    let dictionary = Vec::new();
    file(Column { kind: INT64, codec: SNAPPY, dictionary, page, unpacked, values })
}

/// One text of `length` bytes in each of the rows, written once.
pub(super) fn text_again_and_again(length: usize, values: usize) -> Vec<u8> {
    let mut dictionary = (length as u32).to_le_bytes().to_vec();
    dictionary.resize(4 + length, b'x');
    // Indices of one bit: a run of zeros.
    let mut page = vec![1];
    page.extend(Thrift::default().varint(values as u64 * 2).bytes);
    page.push(0);
    let unpacked = page.len();
    file(Column { kind: BYTE_ARRAY, codec: 0, dictionary, page, unpacked, values })
}

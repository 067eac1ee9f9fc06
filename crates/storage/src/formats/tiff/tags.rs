//! Tags that are read.
//!
//! # Source
//! TIFF revision 6.0, appendix A; OGC GeoTIFF 1.1, section 7; GDAL's documentation of its GTiff driver; libtiff's
//! `tiff.h` (ImageDepth); tifffile 2025 (`UIC2tag`).

pub(super) const NEW_SUBFILE_TYPE: u16 = 254;
pub(super) const SUBFILE_TYPE: u16 = 255;
pub(super) const WIDTH: u16 = 256;
pub(super) const HEIGHT: u16 = 257;
pub(super) const BITS: u16 = 258;
pub(super) const COMPRESSION: u16 = 259;
pub(super) const PHOTOMETRIC: u16 = 262;
pub(super) const FILL_ORDER: u16 = 266;
pub(super) const DOCUMENT_NAME: u16 = 269;
pub(super) const DESCRIPTION: u16 = 270;
pub(super) const STRIP_OFFSETS: u16 = 273;
pub(super) const SAMPLES: u16 = 277;
pub(super) const ROWS_PER_STRIP: u16 = 278;
pub(super) const STRIP_BYTES: u16 = 279;
pub(super) const PLANAR: u16 = 284;
pub(super) const SOFTWARE: u16 = 305;
pub(super) const DATE_TIME: u16 = 306;
pub(super) const ARTIST: u16 = 315;
pub(super) const HOST_COMPUTER: u16 = 316;
pub(super) const PREDICTOR: u16 = 317;
pub(super) const TILE_WIDTH: u16 = 322;
pub(super) const TILE_HEIGHT: u16 = 323;
pub(super) const TILE_OFFSETS: u16 = 324;
pub(super) const TILE_BYTES: u16 = 325;
pub(super) const SUB_IFDS: u16 = 330;
pub(super) const SAMPLE_FORMAT: u16 = 339;
pub(super) const JPEG_TABLES: u16 = 347;
pub(super) const IMAGE_DEPTH: u16 = 32997;
pub(super) const COPYRIGHT: u16 = 33432;
pub(super) const PIXEL_SCALE: u16 = 33550;
/// UIC2Tag: a value for each plane of a stack.
pub(super) const METAMORPH: u16 = 33629;
pub(super) const TIE_POINTS: u16 = 33922;
pub(super) const TRANSFORMATION: u16 = 34264;
pub(super) const GEO_KEYS: u16 = 34735;
pub(super) const GEO_TEXTS: u16 = 34737;
pub(super) const GDAL_METADATA: u16 = 42112;
pub(super) const GDAL_NODATA: u16 = 42113;

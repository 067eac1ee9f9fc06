//! The text that marks missing texts, and the chunks of texts.

use super::bench;
use crate::sink::cf::missing_text;
use crate::sink::{Item, Layout, ZarrWriter};
use std::fs;
use std::sync::Arc;
use tessera_planner::catalog::{Attrs, Coord, CoordValues, TextColumn, Texts};

fn stored(texts: &Texts) -> (String, Option<String>) {
    let missing = missing_text(texts);
    let all = texts.options().map(|text| text.or(missing.as_deref()).unwrap());
    (all.collect::<Vec<_>>().join(","), missing.clone())
}

fn some(text: &str) -> (String, Option<String>) {
    (text.to_string(), None)
}

fn marked(text: &str, missing: &str) -> (String, Option<String>) {
    (text.to_string(), Some(missing.to_string()))
}

#[test]
fn missing_texts_are_stored_as_a_text_that_no_other_one_is() {
    let own = |all: [&str; 4]| Texts::marked(all.map(String::from).to_vec(), |text| text == "NA");
    assert_eq!(stored(&own(["a", "", "b", "a"])), some("a,,b,a"));
    assert_eq!(stored(&own(["a", "NA", "", "NA"])), marked("a,NA,,NA", "NA"));
    // Texts of rows have no text for missing ones; an empty one is a text.
    let rows = |all: [Option<&str>; 3]| -> Texts {
        all.map(|t| t.map(String::from)).into_iter().collect()
    };
    assert_eq!(stored(&rows([Some("a"), None, Some("")])), marked("a,NULL,", "NULL"));
    assert_eq!(
        stored(&rows([Some("NULL"), None, Some("NULL_")])),
        marked("NULL,NULL__,NULL_", "NULL__")
    );
    // Two files have two texts for missing ones.
    let joined = Texts::joined(&[&own(["a", "NA", "b", "c"]), &rows([None, Some("d"), None])]);
    assert_eq!(stored(&joined).1.as_deref(), Some("NULL"));
    assert_eq!(stored(&joined).0, "a,NULL,b,c,NULL,d,NULL");
}

#[test]
fn chunks_of_zarr_v2_are_small_if_a_text_is_long() {
    let b = bench(None);
    let url = b.directory.path().join("x.zarr");
    let long = "é".repeat(1 << 20);
    let texts: Vec<String> =
        (0..20).map(|i| if i == 7 { long.clone() } else { i.to_string() }).collect();
    let coord = Coord {
        name: "note".into(),
        dim: "i".into(),
        values: CoordValues::Text(texts.into()),
        attrs: Attrs::new(),
    };
    let column = TextColumn { coord: Arc::new(coord), is_along: true, is_coordinate: false };
    let items = vec![Item::of_texts(&column).unwrap()];
    let layout = Layout { format: 2, ..Layout::default() };
    let target = b.target(url.to_str().unwrap());
    let how = (false, false, false);
    let create = ZarrWriter::create(&target, items, Attrs::new(), layout, how, &b.host);
    let writer = b.host.io.block_on(create).unwrap();
    b.host.io.block_on(writer.finish()).unwrap();
    let document = fs::read_to_string(url.join("note/.zarray")).unwrap();
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    // Of 4 MiB each, 16 have 64 MiB.
    assert_eq!(document["chunks"], serde_json::json!([16]), "{document}");
    assert_eq!(document["dtype"], "<U1048576");
    assert!(url.join("note/1").exists() && !url.join("note/2").exists());
}

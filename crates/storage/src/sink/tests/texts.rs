//! Which text stands for missing ones.

use crate::sink::cf::stored_texts;
use tessera_planner::catalog::Texts;

fn stored(texts: &Texts) -> (String, Option<String>) {
    let (all, missing) = stored_texts(texts);
    (all.join(","), missing)
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

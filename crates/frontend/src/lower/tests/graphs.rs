use super::fixture::show;

#[test]
fn smoke() {
    insta::assert_snapshot!(show("SELECT t2m FROM era5"), @"");
}

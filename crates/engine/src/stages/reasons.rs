//! Tests of the reasons for which stages of a type drop packets, which monitoring knows before the first
//! drop.

use crate::pipeline::stage_type;

#[test]
fn reasons_of_a_stage_and_of_its_open_ports() {
    let names = |kind: &str| -> Vec<_> {
        stage_type(kind).unwrap().drop_reasons().into_iter().map(|r| r.name()).collect()
    };
    assert_eq!(names("firewall"), ["unconnected", "denied", "table_full"]);
    assert_eq!(names("meter"), ["rate_limited"]);
    assert!(names("nat").contains(&"table_full"));
    assert!(names("reframe").is_empty());
}

//! Blobs and the sources that they are ranges of.

use std::sync::Arc;
use tare_core::Blob;
use tare_testkit::Noting;

#[test]
fn what_is_given_back_lies_inside() {
    let source = Arc::new(Noting::new(vec![0; 10]));
    let part = Blob::new(source.clone()).slice(2..8).unwrap();
    part.unload(0..3);
    part.unload(4..100);
    part.unload(6..9);
    assert_eq!(source.take(), [2..5, 6..8]);
}

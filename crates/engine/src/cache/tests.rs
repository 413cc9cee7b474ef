//! Every storage kind: transactional, exact in bytes, and exact in what it counts.

use super::*;
use tare_core::DType;
use tare_ops::ReferenceBackend;

const TOKEN: KvShape = KvShape { layers: 2, kv_heads: 1, head_size: 4, dtype: DType::F32 };
const KINDS: [CacheKind; 4] = [CacheKind::Recompute, CacheKind::Concatenate, CacheKind::Capacity, CacheKind::Paged];
const A: RequestId = RequestId(1);
const B: RequestId = RequestId(2);

struct Rig {
    backend: ReferenceBackend,
    storage: Box<dyn Storage>,
}

impl Rig {
    /// Twelve tokens: pages of 3 under `paged`.
    fn new(kind: CacheKind) -> Self {
        let mut backend = ReferenceBackend::new();
        let (page_tokens, pages) = if kind == CacheKind::Paged { (3, 4) } else { (1, 12) };
        let shape = StorageShape { kind, page_tokens, pages, token: TOKEN };
        let storage = storage(&mut backend, shape).unwrap();
        Self { backend, storage }
    }

    fn open(&mut self, sequence: RequestId, bound: usize) {
        self.storage.open(&mut self.backend, sequence, bound).unwrap();
    }

    fn append(&mut self, appends: &[(RequestId, usize)]) -> Result<(), CacheError> {
        let appends: Vec<Append> =
            appends.iter().map(|(sequence, rows)| Append { sequence: *sequence, rows: *rows }).collect();
        self.storage.append(&mut self.backend, &appends)
    }

    fn export(&mut self, sequence: RequestId) -> Vec<u8> {
        export(&*self.storage, &mut self.backend, sequence, TOKEN).unwrap()
    }

    fn import(&mut self, sequence: RequestId, bytes: &[u8]) -> Result<(), CacheError> {
        let kv = ExportedKv { tokens: Vec::new(), shape: TOKEN, bytes: bytes.to_vec() };
        import(&*self.storage, &mut self.backend, sequence, &kv)
    }
}

/// Bytes of `tokens` tokens in which every element tells its plane, token and place.
fn bytes(tokens: usize) -> Vec<u8> {
    let element = |plane: usize, token: usize, i: usize| (plane * 1000 + token * 10 + i) as f32;
    let floats = (0..4).flat_map(|p| (0..tokens).flat_map(move |t| (0..4).map(move |i| element(p, t, i))));
    floats.flat_map(f32::to_le_bytes).collect()
}

#[test]
fn what_was_imported_survives_appends_and_rewinds() {
    for kind in KINDS {
        let mut rig = Rig::new(kind);
        rig.open(A, 9);
        rig.append(&[(A, 5)]).unwrap();
        rig.import(A, &bytes(5)).unwrap();
        assert_eq!(rig.export(A), bytes(5), "{kind:?}");
        rig.append(&[(A, 4)]).unwrap();
        rig.storage.rewind(A, 5).unwrap();
        assert_eq!(rig.export(A), bytes(5), "{kind:?}");
        rig.storage.rewind(A, 2).unwrap();
        assert_eq!(rig.export(A), bytes(2), "{kind:?}");
        assert!(matches!(rig.storage.rewind(A, 3), Err(CacheError::Rewind { wanted: 3, cached: 2, .. })), "{kind:?}");
        assert!(matches!(rig.import(A, &bytes(3)), Err(CacheError::Bytes { .. })), "{kind:?}");
        rig.storage.rename(A, B).unwrap();
        assert_eq!(rig.export(B), bytes(2), "{kind:?}");
        rig.storage.close(&mut rig.backend, B).unwrap();
        assert_eq!(rig.storage.pool().live, 0, "{kind:?}");
        assert!(matches!(rig.storage.tokens(B), Err(CacheError::Unknown(B))), "{kind:?}");
    }
}

#[test]
fn overflow_by_one_is_refused_with_nothing_changed() {
    let mut rig = Rig::new(CacheKind::Capacity);
    rig.open(A, 5);
    rig.open(B, 4);
    rig.append(&[(A, 5), (B, 1)]).unwrap();
    rig.import(A, &bytes(5)).unwrap();
    let before = (rig.export(A), rig.export(B), rig.storage.copies(), rig.storage.pool());
    // B has room and comes first, and is not touched either.
    let refused = rig.append(&[(B, 1), (A, 1)]).unwrap_err();
    assert!(matches!(refused, CacheError::Overflow { sequence: A, capacity: 5, wanted: 6 }));
    assert_eq!((rig.export(A), rig.export(B), rig.storage.copies(), rig.storage.pool()), before);
    assert_eq!((rig.storage.tokens(A).unwrap(), rig.storage.tokens(B).unwrap()), (5, 1));
}

#[test]
fn pages_for_a_step_are_all_had_or_none() {
    let mut rig = Rig::new(CacheKind::Paged);
    rig.open(A, 12);
    rig.open(B, 12);
    rig.append(&[(A, 4)]).unwrap();
    rig.import(A, &bytes(4)).unwrap();
    // Two pages are left: one for A, two for B are wanted.
    let before = (rig.export(A), rig.storage.copies(), rig.storage.pool());
    let refused = rig.append(&[(A, 3), (B, 4)]).unwrap_err();
    assert!(matches!(refused, CacheError::OutOfPages { wanted: 3, free: 2, capacity: 4 }));
    assert_eq!((rig.export(A), rig.storage.copies(), rig.storage.pool()), before);
    assert_eq!(rig.storage.tokens(B).unwrap(), 0);
    assert!(matches!(rig.append(&[(A, 1), (RequestId(9), 1)]), Err(CacheError::Unknown(_))));
    assert_eq!(rig.storage.tokens(A).unwrap(), 4);
    rig.append(&[(A, 2), (B, 4)]).unwrap();
    assert_eq!(rig.storage.pool().live, 4);
}

#[test]
fn rewind_and_reset_keep_a_region_and_free_pages() {
    for (kind, live) in [(CacheKind::Capacity, 9), (CacheKind::Paged, 0)] {
        let mut rig = Rig::new(kind);
        rig.open(A, 9);
        rig.append(&[(A, 9)]).unwrap();
        let copies = rig.storage.copies();
        rig.storage.rewind(A, 0).unwrap();
        assert_eq!((rig.storage.pool().live, rig.storage.copies()), (live, copies), "{kind:?}");
        rig.append(&[(A, 9)]).unwrap();
        assert_eq!(rig.storage.copies().slice_write, 18 * TOKEN.token_bytes() as u64, "{kind:?}: cumulative");
    }
}

#[test]
fn copies_are_those_of_the_kind() {
    let t = TOKEN.token_bytes() as u64;
    for kind in KINDS {
        let mut rig = Rig::new(kind);
        rig.open(A, 6);
        for rows in [3, 1, 2] {
            rig.append(&[(A, rows)]).unwrap();
        }
        let logical = if kind == CacheKind::Concatenate { 3 + 4 } else { 0 };
        let want = CopyBytes { logical_copy: logical * t, physical_growth_copy: 0, slice_write: 6 * t };
        assert_eq!(rig.storage.copies(), want, "{kind:?}");
        rig.import(A, &bytes(6)).unwrap();
        rig.open(A, 7);
        let growth = if matches!(kind, CacheKind::Capacity | CacheKind::Recompute) { 6 } else { 0 };
        assert_eq!(rig.storage.copies().physical_growth_copy, growth * t, "{kind:?}");
        assert_eq!(rig.export(A), bytes(6), "{kind:?}");
    }
}

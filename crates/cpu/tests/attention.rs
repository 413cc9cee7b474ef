//! Attention in any order: what a row gets follows from its sequence alone.

use tare_core::{Blob, DType, Format, Weight};
use tare_cpu::{CpuBackend, CpuConfig, detect_isa};
use tare_ops::conformance::{Closeness, cases, check_kernels};
use tare_ops::exact;
use tare_ops::reference::linear::round_bf16;
use tare_ops::{
    Backend, Batch, Bucket, BufId, Buffer, ForwardPlan, Isa, KvShape, Op, OpCall, RopeStyle, RopeTable, Row, RowSpace,
    Slack, StepOutput, Table, TokenSource, Variant, Wants, WeightInfo,
};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_SIZE: usize = 64;
/// Multiplies the scores.
const SCALE: f32 = 0.125;
/// Tokens that a sequence has at most, and sequences.
const TOKENS: usize = 600;
const SEQUENCES: usize = 3;
/// The most rows of a step.
const ROWS: usize = 320;

/// Rows of a step that belong to one sequence: which, its first row's token, and how many.
type Chunk = (usize, usize, usize);

/// Who computes, and on which pages.
#[derive(Clone, Copy, Debug)]
struct Host {
    threads: usize,
    level: Isa,
    page_tokens: usize,
}

/// Queries, keys and values of all tokens, [tokens, width] each.
struct Tables([(usize, Vec<f32>); 3]);

impl Tables {
    /// Noise; keys grow by `rise` of their size from one token of a sequence to the next.
    fn new(rise: f32) -> Self {
        let of = |seed, heads: usize, size, rise| (heads * HEAD_SIZE, numbers(seed, heads * HEAD_SIZE, size, rise));
        Self([of(0, HEADS, 6.0, 0.0), of(1, KV_HEADS, 1.0, rise), of(2, KV_HEADS, 1.0, 0.0)])
    }

    /// Noise of which queries are `2^power` times as large; with scores that are all negative, or of both signs.
    fn huge(power: i32, negative: bool) -> Self {
        let mut tables = Self::new(0.01);
        let [q, k, _] = &mut tables.0;
        q.1.iter_mut().for_each(|x| *x *= 2f32.powi(power));
        if negative {
            q.1.iter_mut().for_each(|x| *x = -x.abs());
            k.1.iter_mut().for_each(|x| *x = x.abs());
        }
        tables
    }

    /// What head `head` of the `at`-th token of sequence `s` has in table `n`.
    fn head(&self, n: usize, s: usize, at: usize, head: usize) -> &[f32] {
        let (width, numbers) = &self.0[n];
        &numbers[(s * TOKENS + at) * width + head * HEAD_SIZE..][..HEAD_SIZE]
    }
}

/// Numbers in [-size, size) at first, a function of the seed.
fn numbers(seed: u32, width: usize, size: f32, rise: f32) -> Vec<f32> {
    let number = |i: u32| {
        let x = (i + 1).wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(2_246_822_519));
        ((x ^ x >> 15).wrapping_mul(2_654_435_769) >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let risen = |i: u32| 1.0 + rise * (i as usize / width % TOKENS) as f32;
    (0..(TOKENS * SEQUENCES * width) as u32).map(|i| size * risen(i) * number(i)).collect()
}

fn weight((width, numbers): &(usize, Vec<f32>)) -> Weight {
    let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    Weight::blocks("table", Format::F32, numbers.len() / width, *width, Blob::from_vec(bytes)).unwrap()
}

/// Queries, keys and values out of tables, the keys and values into the cache, attention, and its rows out again.
fn plan(weights: &[WeightInfo], kernel: &str) -> ForwardPlan {
    let [q, k, v, out, picked] = [0, 1, 2, 3, 4].map(BufId);
    let embed = |n: usize, out| (Op::Embedding { table: weights[n].id, out }, "embedding.f32.portable".to_string());
    let kv_of_head = (0..HEADS).map(|h| (h * KV_HEADS / HEADS) as u16).collect();
    let calls = [
        embed(0, q),
        embed(1, k),
        embed(2, v),
        (Op::KvAppend { layer: 0, k, v }, "kv_append.portable".into()),
        (Op::Attention { layer: 0, q, kv_of_head, scale: SCALE, out }, kernel.into()),
        (Op::SelectRows { x: out, out: picked }, "select_rows.portable".into()),
        (Op::Sample { logits: picked }, "sample.portable".into()),
    ];
    let buffer = |width, rows| Buffer { name: "rows".into(), width, rows };
    let (wide, narrow) = (HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE);
    ForwardPlan {
        name: "attention".into(),
        class: "bf16-free".into(),
        bucket: Bucket { rows: ROWS, selected: ROWS },
        buffers: vec![
            buffer(wide, RowSpace::All),
            buffer(narrow, RowSpace::All),
            buffer(narrow, RowSpace::All),
            buffer(wide, RowSpace::All),
            buffer(wide, RowSpace::Selected),
        ],
        weights: weights.to_vec(),
        rope: RopeTable { inv_freq: Vec::new(), factor: 1.0, style: RopeStyle::HalfSplit },
        kv: KvShape { layers: 1, kv_heads: KV_HEADS, head_size: HEAD_SIZE, dtype: DType::BF16 },
        calls: calls.into_iter().map(|(op, kernel)| OpCall { op, kernel, layer: None }).collect(),
    }
}

/// A backend with kernels over emulated tiles beside all others.
fn backend(threads: usize) -> CpuBackend {
    tare_emulated::backend(CpuConfig { threads, isa: detect_isa(), pin: false, keep_workers: false }).unwrap()
}

/// What every row of these steps gets out of noise, in bits, by sequence and token.
fn attended(host: Host, method: &str, steps: &[&[Chunk]]) -> Vec<Vec<Vec<u32>>> {
    attended_of(host, method, steps, &Tables::new(0.0))
}

/// The same out of some tables.
fn attended_of(host: Host, method: &str, steps: &[&[Chunk]], tables: &Tables) -> Vec<Vec<Vec<u32>>> {
    let mut backend = backend(host.threads);
    let weights: Vec<WeightInfo> = tables
        .0
        .iter()
        .map(|table| {
            let w = weight(table);
            let id = backend.pack(&w).unwrap();
            let (name, format) = (w.name().to_string(), w.format());
            WeightInfo { id, name, format, rows: w.rows(), cols: w.cols(), bytes: w.bytes() }
        })
        .collect();
    let method = if method == IN_ORDER { String::new() } else { format!("{method}.") };
    let plan = plan(&weights, &format!("attention.{method}{}", host.level));
    let exe = backend.compile(&plan).unwrap();
    let pages = TOKENS.div_ceil(host.page_tokens);
    let kv = backend.alloc_kv(plan.kv, pages * SEQUENCES, host.page_tokens).unwrap();
    // Pages are dealt out backwards and in turn.
    let page = |s: usize, n: usize| ((pages - n) * SEQUENCES - 1 - s) as u32;
    let tables: Vec<Table> =
        (0..SEQUENCES).map(|s| Table { kv, pages: (0..pages).map(|n| page(s, n)).collect() }).collect();
    let mut got = vec![vec![Vec::new(); TOKENS]; SEQUENCES];
    for step in steps {
        let row = |&(s, from, n): &Chunk| {
            (from..from + n).map(move |at| Row {
                token: TokenSource::Id((s * TOKENS + at) as u32),
                position: 0,
                table: s as u32,
                slot: at as u32,
                context: at as u32 + 1,
                wants: Wants::Logits,
            })
        };
        let rows: Vec<Row> = step.iter().flat_map(row).collect();
        let batch = Batch { rows, tables: tables.clone(), ..Batch::default() };
        let mut out = StepOutput::default();
        backend.run(exe, &batch, &mut out).unwrap();
        for (row, out) in batch.rows.iter().zip(out.rows) {
            got[row.table as usize][row.slot as usize] = out.logits.iter().map(|x| x.to_bits()).collect();
        }
    }
    got
}

/// The method whose kernels keep the reference's order: their keys do not name it.
const IN_ORDER: &str = "in order";
/// Levels of vectors that kernels are written for.
const VECTORS: [Isa; 3] = [Isa::Avx512, Isa::Avx2, Isa::Neon];

/// Every kernel in any order of this host that has many rows in a step, or a few: method and level.
fn kernels() -> Vec<(&'static str, Isa)> {
    let levels = VECTORS.into_iter().chain([Isa::Portable]).filter(|level| detect_isa().has(*level));
    let lanes = levels.flat_map(|level| [("spans", level), ("columns", level)]);
    lanes.chain([("tiles", emulated())]).collect()
}

/// The widest level that tiles are emulated on.
fn emulated() -> Isa {
    VECTORS.into_iter().find(|level| detect_isa().has(*level)).unwrap_or(Isa::Portable)
}

/// Chunks of many rows and of a few, single rows, contexts of several spans, all in one step or in two.
const STORY: &[&[Chunk]] =
    &[&[(0, 0, 210), (1, 0, 1), (2, 0, 65)], &[(2, 65, 1), (0, 210, 150), (1, 1, 3)], &[(0, 360, 200)]];

fn threads_and_pages_change_no_bit(method: &str, level: Isa) {
    let want = attended(Host { threads: 1, level, page_tokens: TOKENS }, method, STORY);
    for (threads, page_tokens) in [(1, 16), (2, 16), (3, 7), (16, 64), (5, 1)] {
        let host = Host { threads, level, page_tokens };
        assert!(attended(host, method, STORY) == want, "{method}: {host:?}");
    }
}

fn neighbours_change_no_bit(method: &str, level: Isa) {
    let host = Host { threads: 2, level, page_tokens: 16 };
    let want = attended(host, method, &[&[(0, 0, 300)]]).swap_remove(0);
    // In spans a row is by itself whatever it travels with. In tiles chunks may be cut as one likes, as long as there are
    // enough rows for a tile.
    let apart: Vec<[Chunk; 2]> = (0..30).map(|i| [(1, i, 1), (0, 10 * i, 10)]).collect();
    let apart: Vec<&[Chunk]> = apart.iter().map(|step| &step[..]).collect();
    let chunks: &[&[Chunk]] = &[&[(1, 0, 9), (0, 0, 37)], &[(0, 37, 200), (2, 0, 33)], &[(0, 237, 63)]];
    let steps = if method == "spans" { &apart } else { chunks };
    assert!(attended(host, method, steps)[0] == want, "{method}, {level}");
}

#[test]
fn what_a_row_gets_follows_from_its_sequence_alone() {
    for (method, level) in kernels() {
        threads_and_pages_change_no_bit(method, level);
        neighbours_change_no_bit(method, level);
    }
}

#[test]
#[ignore = "needs a processor with AMX"]
fn amx_attention_of_a_row_follows_from_its_sequence_alone() {
    threads_and_pages_change_no_bit("tiles", Isa::Amx);
    neighbours_change_no_bit("tiles", Isa::Amx);
}

/// Every row against exact results, where later keys make ever larger scores: what was gathered before shrinks again and
/// again.
fn growing_scores_are_near_exact(level: Isa) {
    let tables = Tables::new(0.05);
    let host = Host { threads: 2, level, page_tokens: 16 };
    let got = attended_of(host, "tiles", &[&[(0, 0, 300)], &[(0, 300, 290)]], &tables);
    for (at, got) in got[0][..590].iter().enumerate().step_by(7) {
        for head in 0..HEADS {
            let cached = |n: usize| -> Vec<Vec<f32>> {
                let of = |at| tables.head(n, 0, at, head * KV_HEADS / HEADS).iter().copied().map(round_bf16).collect();
                (0..=at).map(of).collect()
            };
            let (keys, values) = (cached(1), cached(2));
            let rows: [Vec<&[f32]>; 2] = [&keys, &values].map(|all| all.iter().map(Vec::as_slice).collect());
            let q = tables.head(0, 0, at, head);
            let bounds = exact::attention(q, SCALE, Slack::Bf16Products, &rows[0], &rows[1]);
            for (e, bits) in got[head * HEAD_SIZE..][..HEAD_SIZE].iter().enumerate() {
                let off = bounds.off(e, f32::from_bits(*bits));
                assert!(off <= 1.0, "{level}: token {at}, head {head}, number {e} is {off} of its limit off");
            }
        }
    }
}

#[test]
fn growing_scores_are_near_exact_in_emulated_tiles() {
    growing_scores_are_near_exact(emulated());
}

#[test]
#[ignore = "needs a processor with AMX"]
fn amx_growing_scores_are_near_exact() {
    growing_scores_are_near_exact(Isa::Amx);
}

/// Scores beyond what fits beside a fraction, and beyond what fits into an integer: the reference takes the rounded scores' distance
/// from the largest of them, so that this one has all the weight wherever rounding leaves it ahead. How many rows had such a one.
fn huge_scores_pick_a_token(method: &str, level: Isa) -> usize {
    /// How far the largest score must be ahead, as a share of it: rounding queries to BF16 leaves less.
    const AHEAD: f64 = 1.0 / 32.0;
    let mut ahead = 0;
    for (power, negative) in [12, 19, 25, 31, 45, 100].into_iter().flat_map(|p| [(p, false), (p, true)]) {
        let tables = Tables::huge(power, negative);
        let host = Host { threads: 2, level, page_tokens: 16 };
        let got = attended_of(host, method, &[&[(0, 0, 90), (1, 0, 1)], &[(0, 90, 60)]], &tables);
        let rows = (0..150).map(|at| (0, at)).chain([(1, 0)]);
        for ((s, at), head) in rows.flat_map(|row| (0..HEADS).map(move |head| (row, head))) {
            let cached =
                |n: usize, token| tables.head(n, s, token, head * KV_HEADS / HEADS).iter().copied().map(round_bf16);
            let q = tables.head(0, s, at, head);
            let score = |token| q.iter().zip(cached(1, token)).map(|(q, k)| f64::from(*q) * f64::from(k)).sum::<f64>();
            let mut scores: Vec<(f64, usize)> = (0..=at).map(|token| (score(token), token)).collect();
            scores.sort_by(|a, b| b.0.total_cmp(&a.0));
            let got = got[s][at][head * HEAD_SIZE..][..HEAD_SIZE].iter().map(|bits| f32::from_bits(*bits));
            let clear = scores.get(1).is_none_or(|next| scores[0].0 - next.0 > AHEAD * scores[0].0.abs());
            ahead += usize::from(clear);
            for (got, want) in got.zip(cached(2, scores[0].1)) {
                let near = if clear { (got - want).abs() <= want.abs() / 128.0 } else { got.abs() <= 1.01 };
                assert!(near, "{method}, {level}, 2^{power}: token {at}, head {head}: {got} and not {want}, {clear}");
            }
        }
    }
    ahead
}

#[test]
fn the_largest_of_huge_scores_has_the_weight() {
    for (method, level) in kernels().into_iter().chain([(IN_ORDER, Isa::Portable)]) {
        assert!(huge_scores_pick_a_token(method, level) > 500, "{method}, {level}");
    }
}

#[test]
#[ignore = "needs a processor with AMX"]
fn amx_the_largest_of_huge_scores_has_the_weight() {
    assert!(huge_scores_pick_a_token("tiles", Isa::Amx) > 500);
}

/// Holds attention in tiles of some levels against the table; how many pairs of case and kernel there were.
fn conforms(threads: usize, wanted: impl Fn(Isa) -> bool) -> usize {
    let wanted = |v: &Variant| v.key.starts_with("attention.tiles.") && wanted(v.isa);
    let report = check_kernels(&mut backend(threads), &cases(), Closeness::Bitwise, wanted);
    assert!(report.differences.is_empty(), "{report}");
    report.compared
}

/// Cases of BF16 caches and more than 16 rows, at the least.
const CASES: usize = 8;

#[test]
fn emulated_tiles_answer_the_table() {
    for threads in [1, 3] {
        assert!(conforms(threads, |isa| isa != Isa::Amx) >= CASES);
    }
}

#[test]
#[ignore = "needs a processor with AMX"]
fn amx_attention_answers_the_table() {
    for threads in [1, 2, 3, 16] {
        assert!(conforms(threads, |isa| isa == Isa::Amx) >= CASES, "AMX is {:?}", tare_probe::amx::usable());
    }
}

/// The instructions of the processor and what stands for them give the same bits.
#[test]
#[ignore = "needs a processor with AMX"]
fn amx_attention_is_that_of_emulated_tiles() {
    let of = |level| attended(Host { threads: 2, level, page_tokens: 16 }, "tiles", STORY);
    assert!(of(Isa::Amx) == of(emulated()));
}

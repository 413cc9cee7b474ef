//! Which kernel of the whole registry is taken for some rows, on hosts that this one need not be.

use tare_core::Format;
#[cfg(target_arch = "x86_64")]
use tare_cpu::dots::tiles::TOGETHER;
#[cfg(target_arch = "x86_64")]
use tare_cpu::kernels::linear_int::tiles::LEAST as MANY_ROWS;
use tare_cpu::registry::Registry;
use tare_ops::{Fit, Isa, IsaSet, OpName, OpShape, Order, Rounding, Variant};

fn shape(format: Format, rows: usize, order: Order) -> OpShape {
    OpShape {
        rows,
        n: 64,
        k: 256,
        format: Some(format),
        heads: 0,
        kv_heads: 0,
        head_size: 0,
        kv_element_bytes: 0,
        context: 0,
        rounding: Some(Rounding::Bf16),
        order,
    }
}

/// The first kernel that is best on a host with these levels, of those whose order the class allows.
fn best(s: &OpShape, isa: &IsaSet) -> Option<String> {
    let allowed = |v: &&Variant| v.op == OpName::Linear && (s.order == Order::Free || v.order == Order::Reference);
    let registry = Registry::new();
    let found = registry.variants().iter().filter(allowed).find(|v| v.fit(s, isa) == Fit::Best);
    found.map(|v| v.key.clone())
}

#[test]
#[cfg(target_arch = "x86_64")]
fn many_rows_of_free_classes_are_for_tiles() {
    let amx = IsaSet::new([Isa::Avx2, Isa::Avx512, Isa::Avx512Vnni, Isa::Avx512Bf16, Isa::Amx]);
    let without = amx.up_to(Isa::Avx512Bf16);
    let bf16 = (Format::BF16, "linear.bf16.pairs.avx512bf16", "linear.bf16.tiles.amx");
    let packed = (Format::Q4_0, "linear.q4_0.i16.avx512vnni", "linear.q4_0.i16.tiles.amx");
    for (format, few, some) in [bf16, packed] {
        let (tiles, ordered) = (format!("linear.{format}.tiles.amx"), format!("linear.{format}.avx512"));
        let of = |rows, order, isa| best(&shape(format, rows, order), isa);
        assert_eq!(of(MANY_ROWS, Order::Free, &amx), Some(some.to_string()));
        assert_eq!(of(TOGETHER, Order::Free, &amx), Some(some.to_string()));
        assert_eq!(of(TOGETHER + 1, Order::Free, &amx), Some(tiles));
        assert_eq!(of(MANY_ROWS - 1, Order::Free, &amx), Some(few.to_string()));
        assert_eq!(of(512, Order::Reference, &amx), Some(ordered), "class in the reference's order");
        assert_ne!(of(512, Order::Free, &without), of(512, Order::Free, &amx));
    }
    let named =
        Registry::new().find("linear.bf16.avx512").unwrap().0.fit(&shape(Format::BF16, 64, Order::Free), &without);
    assert!(matches!(named, Fit::Fallback { ref why } if why.contains("amx")), "{named:?}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn stated_integers_are_multiplied_in_tiles_where_one_product_takes_all_rows() {
    let amx = IsaSet::new([Isa::Avx2, Isa::Avx512, Isa::Avx512Vnni, Isa::Avx512Bf16, Isa::Amx]);
    for order in [Order::Reference, Order::Free] {
        let of = |rows, isa: &IsaSet| {
            let s = OpShape { rounding: Some(Rounding::Int15), ..shape(Format::Q4_0, rows, order) };
            best(&s, isa).unwrap_or_default()
        };
        assert_eq!(of(MANY_ROWS - 1, &amx), "linear.q4_0.a15.avx512vnni");
        assert_eq!([MANY_ROWS, TOGETHER].map(|rows| of(rows, &amx)), ["linear.q4_0.a15.tiles.amx"; 2]);
        assert_eq!([TOGETHER + 1, 512].map(|rows| of(rows, &amx)), ["linear.q4_0.a15.avx512vnni"; 2]);
        assert_eq!(of(512, &amx.up_to(Isa::Avx512Bf16)), "linear.q4_0.a15.avx512vnni");
        assert_eq!(of(512, &amx.up_to(Isa::Avx2)), "linear.q4_0.a15.avx2");
    }
}

#[test]
#[cfg(target_arch = "aarch64")]
fn products_of_integers_are_for_the_instruction_that_makes_them() {
    let all = IsaSet::new([Isa::Neon, Isa::NeonDotprod]);
    let of = |format, isa: &IsaSet| best(&shape(format, 1, Order::Free), isa).unwrap_or_default();
    assert_eq!(of(Format::BF16, &all), "linear.bf16.neon");
    assert_eq!(of(Format::Q4_0, &all), "linear.q4_0.i16.neondotprod");
    assert_eq!(of(Format::Q4_0, &all.up_to(Isa::Neon)), "linear.q4_0.i16.neon");
    assert_eq!(of(Format::Q4_0, &all.up_to(Isa::Portable)), "");
}

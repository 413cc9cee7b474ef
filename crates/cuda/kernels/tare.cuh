// What every kernel shares: the step that the host describes, the order of sums, exact conversions.
//
// A kernel takes one structure by value. The same text compiles for the device (NVRTC) and for the host, where a
// header that is put before it stands in for the device: that is how kernels are tested without one.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef TARE_HOST
#define KERNEL(name, Args, ...) extern "C" void name(const Args& a)
#define DEVICE static inline
#define MEMBER inline
#define UNROLL
#define UNROLL_BY(n)
#define ROLLED
#else
// Name, argument, threads of a block and, where it matters, blocks that a multiprocessor must have room for.
#define KERNEL(name, Args, ...) \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__) name(const __grid_constant__ Args a)
#define DEVICE static __device__ __forceinline__
#define MEMBER __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define AS_TEXT(x) #x
#define UNROLL_BY(n) _Pragma(AS_TEXT(unroll n))
#define ROLLED _Pragma("unroll 1")
#endif

// Running sums of every reduction, and the lanes of a half-warp that keep them: element 16 j + l goes to lane l.
#define LANES 16
#define FULL 0xffffffffu

// One row of the step.
struct Row {
    u64 pool;         // address of the row's KV pool
    u32 page_tokens;  // tokens of one of its pages
    u32 first_page;   // where its block table begins in Step::pages
    u32 token;
    u32 slot;
    u32 context;
    u32 page_shift;   // page_tokens is 2 to this power; NO_SHIFT when it is no such number
};

#define NO_SHIFT 0xffffffffu

// What changes from step to step. It lies at one address for as long as an executable lives.
struct Step {
    u32 rows;
    u32 selected;
    const Row* row;             // [rows]
    const u32* selected_row;    // [selected]
    const float* cosine;        // [rows, pairs]
    const float* sine;          // [rows, pairs]
    const u32* pages;
    float* scores;              // [rows, heads, score_stride]
    u64 score_stride;
};

DEVICE float as_float(u32 bits) { return __uint_as_float(bits); }

DEVICE u32 as_bits(float f) { return __float_as_uint(f); }

DEVICE float from_bf16(u32 bits) { return as_float(bits << 16); }

// Nearest, ties to even; NaN stays NaN.
DEVICE u16 to_bf16(float f) {
#ifdef TARE_HOST
    u32 bits = as_bits(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)(bits >> 16 | 0x40u);
    return (u16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#else
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(f));
    return bits;
#endif
}

// Two numbers as BF16, the first in the low half.
DEVICE u32 to_bf16_pair(float low, float high) {
#ifdef TARE_HOST
    return to_bf16(low) | (u32)to_bf16(high) << 16;
#else
    u32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
#endif
}

DEVICE float round_bf16(float f) { return from_bf16(to_bf16(f)); }

DEVICE float from_f16(u32 bits) {
#ifdef TARE_HOST
    return host_half(bits);
#else
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((u16)bits));
    return f;
#endif
}

// Lane 0 of each half-warp gets the sum of its 16 lanes: lane i takes lane i + 8, then 4, 2, 1. Every thread of the
// warp calls it.
DEVICE float tree(float v) {
    UNROLL
    for (int half = LANES / 2; half > 0; half /= 2) v = __fadd_rn(v, __shfl_down_sync(FULL, v, half, LANES));
    return v;
}

// The exponential of the reference, operation by operation.
DEVICE float exponential(float x) {
    float shifted = __fmaf_rn(x, 1.44269504088896340736f, 12582912.0f);
    float n = __fsub_rn(shifted, 12582912.0f);
    float r = __fmaf_rn(n, -0.6933594f, x);
    r = __fmaf_rn(n, 2.1219444e-4f, r);
    float q = __fmaf_rn(0.001395172f, r, 0.008369599f);
    q = __fmaf_rn(q, r, 0.041666187f);
    q = __fmaf_rn(q, r, 0.16666512f);
    q = __fmaf_rn(q, r, 0.5f);
    float y = __fadd_rn(__fmaf_rn(q, __fmul_rn(r, r), r), 1.0f);
    float scaled = as_float(as_bits(y) + (as_bits(shifted) << 23));
    if (x < -87.33654f) return 0.0f;
    if (x > 88.72283f) return as_float(0x7f800000u);
    if (x != x) return as_float(0x7fc00000u);
    return scaled;
}

// The gated unit's x / (1 + e^-x).
DEVICE float silu_of(float x) { return __fdiv_rn(x, __fadd_rn(1.0f, exponential(-x))); }

// 1 / sqrt(dot / width + eps) with dot the row's product with itself.
DEVICE float inverse_rms(float dot, u32 width, float eps) {
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(dot, (float)width), eps)));
}

// Rows of a launch: those of the step, or the selected ones.
DEVICE u32 rows_of(const Step* step, u32 of_selected) { return of_selected ? step->selected : step->rows; }

// The page of token `j` and the token's place in it.
DEVICE u64 page_of(const Step* step, const Row& row, u32 j, u32* place) {
    u32 page = row.page_shift == NO_SHIFT ? j / row.page_tokens : j >> row.page_shift;
    *place = j - page * row.page_tokens;
    return step->pages[row.first_page + page];
}

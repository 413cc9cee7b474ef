// Packed matrices. Every format lies in memory in the order in which half-warps read it.
//
// A row is padded with zeros to chunks of 128 columns. Lane l of a half-warp owns columns 16 j + l of a chunk, j from 0
// to 7, and finds them side by side: elements [rows, chunks, 16 lanes, 8]. Quants of 8 bits lie four to a word, quants of 4
// bits eight, those of even j in its low half and those of odd j in its high half, so that one mask takes two neighbours
// out. Scales (and biases) are [rows, chunks, 128 / GROUP]. What a format is, the host says by macros:
//   QUANT_BITS  32, 16, 8 or 4
//   PLAIN       1: F32 (32 bits), 2: F16, 3: BF16; 0: quants with scales
//   GROUP       columns that share a scale: 16, 32, 64 or 128
//   CENTRE      subtracted from a quant before it is multiplied
//   BIASED      1 when a bias is added after that: two roundings a weight
#define CHUNK 128

struct Matrix {
    const void* quants;
    const void* scales;
    const void* biases;
    u32 rows;
    u32 cols;
    u32 chunks;
    u32 scale_kind;  // 0: F32, 1: F16, 2: BF16
};

#define SCALES (CHUNK / GROUP)

// Eight weights of one lane as they lie in memory.
struct Packed {
#if QUANT_BITS == 32
    uint4 a, b;
#elif QUANT_BITS == 16
    uint4 a;
#elif QUANT_BITS == 8
    uint2 a;
#else
    u32 a;
#endif
#if PLAIN == 0
    float scale[SCALES];
    float bias[SCALES];
#endif
};

DEVICE float scale_at(const void* scales, u64 at, u32 kind) {
    if (kind == 0) return ((const float*)scales)[at];
    u32 bits = ((const u16*)scales)[at];
    return kind == 1 ? from_f16(bits) : from_bf16(bits);
}

// Loads what lane `lane` owns of chunk `chunk` of row `row`.
DEVICE Packed load(const Matrix& m, u32 row, u32 chunk, u32 lane) {
    Packed p;
    u64 at = (u64)row * m.chunks + chunk;
#if QUANT_BITS == 32
    const uint4* q = (const uint4*)m.quants + (at * LANES + lane) * 2;
    p.a = q[0];
    p.b = q[1];
#elif QUANT_BITS == 16
    p.a = ((const uint4*)m.quants)[at * LANES + lane];
#elif QUANT_BITS == 8
    p.a = ((const uint2*)m.quants)[at * LANES + lane];
#else
    p.a = ((const u32*)m.quants)[at * LANES + lane];
#endif
#if PLAIN == 0
    UNROLL
    for (int g = 0; g < SCALES; g++) {
        p.scale[g] = scale_at(m.scales, at * SCALES + g, m.scale_kind);
        p.bias[g] = BIASED ? scale_at(m.biases, at * SCALES + g, m.scale_kind) : 0.0f;
    }
#endif
    return p;
}

#if PLAIN == 0
// An integer below 2^23 as a number: put into the fraction of 2^23 and taken out again, which is exact.
DEVICE float number(u32 q) { return __fsub_rn(as_float(0x4b000000u | q), 8388608.0f + CENTRE); }
#endif

// The weights of columns 16 j + lane, j from 0 to 7.
DEVICE void unpack(const Packed& p, float* w) {
#if PLAIN == 1
    w[0] = as_float(p.a.x), w[1] = as_float(p.a.y), w[2] = as_float(p.a.z), w[3] = as_float(p.a.w);
    w[4] = as_float(p.b.x), w[5] = as_float(p.b.y), w[6] = as_float(p.b.z), w[7] = as_float(p.b.w);
#elif PLAIN >= 2
    u32 pair[4] = {p.a.x, p.a.y, p.a.z, p.a.w};
    UNROLL
    for (int i = 0; i < 4; i++) {
#if PLAIN == 2
        w[2 * i] = from_f16(pair[i] & 0xffffu);
        w[2 * i + 1] = from_f16(pair[i] >> 16);
#else
        w[2 * i] = as_float(pair[i] << 16);
        w[2 * i + 1] = as_float(pair[i] & 0xffff0000u);
#endif
    }
#else
    UNROLL
    for (int j = 0; j < 8; j++) {
#if QUANT_BITS == 8
        u32 q = (j < 4 ? p.a.x : p.a.y) >> (j % 2 * 16 + j % 4 / 2 * 8) & 255u;
#else
        u32 q = p.a >> (j % 2 * 16 + j / 2 * 4) & 15u;
#endif
        float v = __fmul_rn(number(q), p.scale[16 * j / GROUP]);
        w[j] = BIASED ? __fadd_rn(v, p.bias[16 * j / GROUP]) : v;
    }
#endif
}

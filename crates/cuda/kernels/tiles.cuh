// What products in tiles share: their argument and where results go.

// A matrix [rows, columns] of BF16 and the tile that is copied of it, in the driver's own form.
struct __align__(64) TileMap {
    u64 words[16];
};

// One matrix of a launch: matrices that read the same rows share it.
struct TilesPart {
    TileMap map;        // of w; for kernels that copy by maps
    const u16* w;       // [n, depth] BF16
    const float* bias;  // null: none
    float* out;
    u32 rows;           // n
    u32 out_stride;
    u32 first_tile;     // of those in y
    u32 reserved[7];
};

#define PARTS 3

struct TilesArgs {
    TileMap map;     // of x
    TilesPart part[PARTS];
    const Step* step;
    const u16* x;    // [T, depth] BF16
    u16* gated;      // null: none; else [T, gated_depth] BF16: silu(first) * second
    u32 depth;       // columns, padded to chunks
    u32 gated_depth;
    u32 parts;
    u32 accumulate;
    u32 of_selected;
    u32 reserved[5];
};

// The matrix that tiles `tile` and on of y are of.
DEVICE const TilesPart& part_of(const TilesArgs& a, u32 tile) {
    if (a.parts > 2 && tile >= a.part[2].first_tile) return a.part[2];
    if (a.parts > 1 && tile >= a.part[1].first_tile) return a.part[1];
    return a.part[0];
}

DEVICE float biased(const TilesPart& p, u32 n, float dot) {
    return p.bias && n < p.rows ? __fadd_rn(dot, p.bias[n]) : dot;
}

// Outputs n and n + 1 of a row, n even.
DEVICE void put_pair(const TilesArgs& a, const TilesPart& p, u32 t, u32 n, float first, float second) {
    if (n >= p.rows) return;
    float* out = p.out + (u64)t * p.out_stride + n;
    bool both = n + 1 < p.rows;
    float2 v = make_float2(biased(p, n, first), biased(p, n + 1, second));
    if (a.accumulate) v = make_float2(__fadd_rn(out[0], v.x), both ? __fadd_rn(out[1], v.y) : 0.0f);
    if (both) *(float2*)out = v;
    else *out = v.x;
}

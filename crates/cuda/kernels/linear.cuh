// Matrix products over the same rows, as one launch takes them.

// One matrix of a launch: matrices that read the same rows share it.
struct Part {
    Matrix m;
    const float* bias;  // null: none
    float* out;
    u32 out_stride;
    u32 first_block;  // of those in x; of `gemv.cu`: the first tile
};

#define PARTS 3

struct LinearArgs {
    Part part[PARTS];
    const Step* step;
    const float* x;
    const float* norm;  // null: x as it is; else the weight of the norm that x goes through first
    u32 x_stride;
    u32 parts;
    u32 accumulate;
    u32 bf16;
    u32 of_selected;
    float eps;
    u32 tiles;  // of `gemv.cu`: of all matrices
    float share;  // 1 over the columns
};

DEVICE float taken(const LinearArgs& a, float x) { return a.bf16 ? round_bf16(x) : x; }

DEVICE float biased(const Part& p, u32 n, float dot) { return p.bias ? __fadd_rn(dot, p.bias[n]) : dot; }

DEVICE void finish(const LinearArgs& a, const Part& p, u32 t, u32 n, float dot) {
    float value = biased(p, n, dot);
    float* out = p.out + (u64)t * p.out_stride + n;
    *out = a.accumulate ? __fadd_rn(*out, value) : value;
}

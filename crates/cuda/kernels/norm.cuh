// The argument of norms, of rows and of heads.
struct NormArgs {
    const Step* step;
    const float* x;
    const float* weight;
    float* out;
    u32 x_stride;
    u32 out_stride;
    u32 width;  // D or E
    u32 heads;  // 1 for rows
    float eps;
    u32 of_selected;
};

#define NORM_THREADS 256

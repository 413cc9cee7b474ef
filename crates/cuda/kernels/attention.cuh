// The argument of attention, whatever its order of sums.
struct AttentionArgs {
    const Step* step;
    const float* q;
    float* out;
    const u16* kv_of_head;  // [H]
    Pool pool;
    u32 q_stride;
    u32 out_stride;
    u32 layer;
    u32 heads;
    float scale;
    u32 reserved;
};

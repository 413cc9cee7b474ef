// Where keys and values lie in a pool: [pages, layers, 2, K, page_tokens, E]; the run of one page, layer, half and head
// is contiguous.
struct Pool {
    u32 layers;
    u32 kv_heads;
    u32 head_size;
    u32 bf16;  // element type: 1 BF16, 0 F32
};

// Elements before token `token` of a run.
DEVICE u64 place_of(const Pool& p, u64 page, u32 layer, u32 half, u32 head, u32 page_tokens, u32 token) {
    u64 run = ((page * p.layers + layer) * 2 + half) * p.kv_heads + head;
    return (run * page_tokens + token) * p.head_size;
}

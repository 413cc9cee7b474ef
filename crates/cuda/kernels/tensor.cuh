// Tensor cores, and copies to shared memory that run beside the arithmetic. On a host the header of tests has them.
//
// A tile in shared memory is rows of 64 BF16 elements, 128 bytes: eight pieces of 16 bytes, piece c of row r in place
// c ^ r % 8. Eight rows of one column so lie in different banks, and Hopper's products and copies know the layout as a
// swizzle of 128 bytes. Tiles begin at multiples of 1024 bytes.
#define PIECE 16
#define TILE_DEPTH 64
#define TILE_ROW (TILE_DEPTH * 2)

// Bytes before piece `c` of row `r`.
DEVICE u32 piece_at(u32 r, u32 c) { return r * TILE_ROW + (c ^ r % 8) * PIECE; }

#ifndef TARE_HOST
#define SHARED_BYTES(name) extern __shared__ __align__(1024) u8 name[]

DEVICE u32 in_shared(const void* p) {
    u32 at;
    asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(at) : "l"(p));
    return at;
}

// Begins to copy 16 bytes to shared memory: zeros when nothing is there, and then nothing is read, wherever that is.
DEVICE void copy_piece(void* to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(in_shared(to)), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}

// Ends a group of copies: all that this thread began since the last group.
DEVICE void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most N groups of this thread are under way.
template <int N>
DEVICE void wait_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Two numbers as BF16, to nearest, ties to even; `low` in the lower half.
DEVICE u32 pack_bf16(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// Four 8 x 8 matrices of 16-bit elements: lane 8 i + r names row r of matrix i, and gets of each matrix elements
// 2 (lane % 4) and the next of row lane / 4: as `multiply` of free.cuh takes its operands.
DEVICE void load_matrices(u32* m, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(in_shared(row))
                 : "memory");
}

// The same with rows and columns exchanged.
DEVICE void load_transposed(u32* m, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(in_shared(row))
                 : "memory");
}
#endif

// Eight numbers as BF16.
DEVICE uint4 pack_eight(const float* v) {
    uint4 all = {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])};
    return all;
}

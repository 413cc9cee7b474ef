// What kernels with an order of their own share: launches that overlap, loads of what is read once, tensor-core products.

// Programmatic dependent launch: a kernel that is launched early runs beside the end of the one before it, until it
// calls `await_previous`: before that it may read what no launch of a step writes, and write nothing.
DEVICE void await_previous() {
#ifdef TARE_HOST
    host_await();
#elif __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may start as soon as there is room for it.
DEVICE void let_next_start() {
#if !defined(TARE_HOST) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Sixteen bytes that are read once in a step: they are not kept near the multiprocessor.
DEVICE uint4 stream(const void* from) {
#ifdef TARE_HOST
    return *(const uint4*)from;
#else
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
#endif
}

// Brings what lies at an address near, for a load that comes later.
DEVICE void touch(const float* at) {
#ifndef TARE_HOST
    asm volatile("{ .reg .f32 v; ld.global.f32 v, [%0]; }" ::"l"(at));
#endif
}

// Word `i` of four; what it is must be known when the kernel is compiled.
DEVICE u32 word_of(const uint4& q, int i) { return i == 0 ? q.x : i == 1 ? q.y : i == 2 ? q.z : q.w; }

// c[16, 8] += a[16, 16] b[16, 8] over BF16, in F32, by a whole warp. With g = lane / 4 and t = lane % 4 a thread holds
// a: rows g, g + 8, g, g + 8, each at k = 2 t, 2 t + 1, the last two registers at k + 8; b: column g, k as a's;
// c: rows g, g, g + 8, g + 8 at columns 2 t, 2 t + 1. Which k a place stands for does not matter where a and b agree.
DEVICE void multiply(float* c, const u32* a, const u32* b) {
#ifdef TARE_HOST
    host_multiply(c, a, b);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// 1 / sqrt(x) to a few units in the last place.
DEVICE float inverse_root(float x) {
#ifdef TARE_HOST
    return 1.0f / sqrtf(x);
#else
    float y;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// 2^x to a few units in the last place; 0 far below.
DEVICE float power_of_two(float x) {
#ifdef TARE_HOST
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

#define LOG2_E 1.44269504088896340736f

// x / (1 + e^-x), to about 22 bits.
DEVICE float silu_fast(float x) { return __fdividef(x, __fadd_rn(1.0f, power_of_two(__fmul_rn(-LOG2_E, x)))); }

// The sum of the 16 lanes of a half-warp, in all of them.
DEVICE float sum_of_half(float v) {
    UNROLL
    for (int half = LANES / 2; half > 0; half /= 2) v += __shfl_xor_sync(FULL, v, half, LANES);
    return v;
}

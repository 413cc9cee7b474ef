// Stands in for a CUDA device on a host, so that kernels can be tested without one. Put before a kernel's text.
//
// A block's threads are fibers: each runs until it meets a barrier or exchanges a value with its warp, and the next one
// goes on. They run in rising or in falling order, so that a missing barrier shows in one of the two. A barrier that
// not all threads reach ends the launch with an error, as does an exchange that not all threads of the warp take part in.
//
// A launch that may start early does so as early as it may: what the launches before it wrote is hidden from every block
// until nothing of the block moves but what waits for them.
#define TARE_HOST 1

#undef _FORTIFY_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

struct Dim {
    unsigned x, y;
};
struct __align__(8) uint2 {
    unsigned x, y;
};
struct __align__(16) uint4 {
    unsigned x, y, z, w;
};
struct __align__(16) float4 {
    float x, y, z, w;
};
struct __align__(8) float2 {
    float x, y;
};
static inline float2 make_float2(float x, float y) {
    float2 v = {x, y};
    return v;
}
static inline float4 make_float4(float x, float y, float z, float w) {
    float4 v = {x, y, z, w};
    return v;
}

static Dim threadIdx, blockIdx, blockDim, gridDim;

enum State { READY, AT_BLOCK, AT_WARP, AT_EXCHANGE, AT_GROUP, AT_LAUNCH, DONE };
enum { WARP = 32, GROUP_THREADS = 128, MOST_THREADS = 1024, STACK = 65536 };

// What a thread hands to its warp.
struct Slot {
    unsigned char bytes[24];
};

// A fiber is made once and runs one thread after the other. Switches are long jumps, which ask nothing of the system.
struct Fiber {
    jmp_buf at;
    State state;
    bool made;
    // Which of its two slots it handed over last.
    unsigned char turn;
};
static Fiber fibers[MOST_THREADS];
static jmp_buf scheduler;
static unsigned current;
static Slot slots[2][MOST_THREADS];
// Counts what threads that wait without a barrier of the block may be waiting for.
static unsigned long progress;
static void (*the_kernel)(const void*);
static const void* the_args;

// A pass over the threads of the block: how many, in which order, which place it is at, and whether any came to wait.
static struct {
    unsigned threads;
    bool backwards;
    unsigned place;
    bool moved;
} pass;

static void go_on(unsigned i);

// The pass goes to its next thread that can run, from thread to thread, and to the scheduler after the last.
static __attribute__((noinline)) void next_of_pass() {
    for (; pass.place < pass.threads; pass.place++) {
        unsigned i = pass.backwards ? pass.threads - 1 - pass.place : pass.place;
        if (fibers[i].state == READY) go_on(i);
    }
    _longjmp(scheduler, 1);
}

static __attribute__((noinline)) void wait_at(State state) {
    fibers[current].state = state;
    pass.moved |= state != READY;
    pass.place++;
    if (_setjmp(fibers[current].at) == 0) next_of_pass();
}

// Hides (0) or shows (1) what the launches before this one wrote; none when the launch does not start early.
typedef void (*Curtain)(void* context, int shown);
static Curtain curtain;
static void* behind;
static bool hidden;
// Blocks that have waited for the launches before.
static unsigned long waited;

static inline void host_await() {
    if (hidden) wait_at(AT_LAUNCH);
}

static inline void __syncthreads() { wait_at(AT_BLOCK); }

static inline void __syncwarp() { wait_at(AT_WARP); }

// Hands `mine` to the warp; the slots of its lanes. They hold until the exchange after the next: whoever writes there again has
// met the others at the one between, where all had read.
template <typename T>
static const Slot* hand_over(const T& mine) {
    static_assert(sizeof mine <= sizeof(Slot), "a slot takes what is handed over");
    Slot* all = slots[fibers[current].turn ^= 1];
    memcpy(all[current].bytes, &mine, sizeof mine);
    wait_at(AT_EXCHANGE);
    return all + current / WARP * WARP;
}

template <typename T>
static T handed(const Slot* lanes, unsigned source) {
    T other;
    memcpy(&other, lanes[source].bytes, sizeof other);
    return other;
}

template <typename T>
static T exchange(T mine, unsigned source) {
    return handed<T>(hand_over(mine), source);
}

template <typename T>
static T __shfl_down_sync(unsigned, T v, unsigned delta, unsigned width) {
    unsigned lane = current % WARP;
    return exchange(v, lane % width + delta < width ? lane + delta : lane);
}

template <typename T>
static T __shfl_xor_sync(unsigned, T v, unsigned mask, unsigned width) {
    unsigned lane = current % WARP;
    return exchange(v, lane / width * width + ((lane % width) ^ mask));
}

template <typename T>
static T __shfl_sync(unsigned, T v, unsigned source, unsigned width) {
    unsigned lane = current % WARP;
    return exchange(v, lane / width * width + source % width);
}

// Blocks run one after the other, and threads of a block change over at barriers alone.
static inline unsigned atomicAdd(unsigned* at, unsigned n) {
    unsigned before = *at;
    *at = before + n;
    return before;
}

static inline void __threadfence() {}

// The cycle counter of a multiprocessor: it moves by one from reading to reading, so that a cycle is what a wait for it asks.
static unsigned long long cycles, readings;
static inline unsigned long long host_cycle() {
    readings++;
    return ++cycles;
}

// Cycles that went by between the readings of a launch; -1 when it read none.
extern "C" long long spent() {
    long long between = (long long)readings - 1;
    readings = 0;
    return between;
}

static inline float __uint_as_float(unsigned bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static inline unsigned __float_as_uint(float f) {
    unsigned bits;
    memcpy(&bits, &f, 4);
    return bits;
}
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }

// What a lane holds of the operands of a product.
struct Operands {
    unsigned left[4], right[2];
};

// The tensor-core product of `multiply`, each sum one product after the other.
static inline void host_multiply(float* c, const unsigned* a, const unsigned* b) {
    Operands mine;
    memcpy(mine.left, a, sizeof mine.left);
    memcpy(mine.right, b, sizeof mine.right);
    const Slot* lanes = hand_over(mine);
    unsigned g = current % WARP / 4, t = current % 4;
    for (unsigned i = 0; i < 4; i++)
        for (unsigned quad = 0; quad < 4; quad++) {
            Operands row = handed<Operands>(lanes, g * 4 + quad), column = handed<Operands>(lanes, (2 * t + i % 2) * 4 + quad);
            for (unsigned k = 0; k < 4; k++) {
                unsigned x = row.left[i / 2 + k / 2 * 2] >> k % 2 * 16, y = column.right[k / 2] >> k % 2 * 16;
                c[i] += __uint_as_float(x << 16) * __uint_as_float(y << 16);
            }
        }
}

// IEEE binary16 to binary32.
static inline float host_half(unsigned bits) {
    unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31u, fraction = bits & 1023u;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)fraction * 0x1p-24f;
    return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
}

static void threads_of_a_fiber() {
    for (;;) {
        the_kernel(the_args);
        wait_at(DONE);
    }
}

static void make(unsigned i) {
    static unsigned char* stacks = (unsigned char*)malloc((size_t)MOST_THREADS * STACK);
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks + (size_t)i * STACK;
    context.uc_stack.ss_size = STACK;
    context.uc_link = 0;
    makecontext(&context, threads_of_a_fiber, 0);
    fibers[i].made = true;
    setcontext(&context);
}

// Lets thread `i` run on; nobody comes back from here.
static void go_on(unsigned i) {
    current = i;
    threadIdx.x = i;
    if (fibers[i].made) _longjmp(fibers[i].at, 1);
    make(i);
}

// Lets every thread that can run do so until it waits; whether any came to wait for another thing than its next pass.
static __attribute__((noinline)) bool run_pass() {
    pass.place = 0;
    pass.moved = false;
    if (_setjmp(scheduler) == 0) next_of_pass();
    return pass.moved;
}

static bool all(unsigned first, unsigned n, State state) {
    for (unsigned i = 0; i < n; i++)
        if (fibers[first + i].state != state) return false;
    return true;
}

static void release(unsigned first, unsigned n) {
    for (unsigned i = 0; i < n; i++) fibers[first + i].state = READY;
}

// Lets those go on that wait for the launches before; false when nobody does.
static bool release_launch(unsigned threads) {
    bool any = false;
    for (unsigned i = 0; i < threads; i++) {
        if (fibers[i].state != AT_LAUNCH) continue;
        fibers[i].state = READY;
        any = true;
    }
    if (!any) return false;
    curtain(behind, 1);
    hidden = false;
    waited++;
    return true;
}

static void begin_block(unsigned threads);

// 0 when every thread came to its end.
static int run_block(unsigned threads, int backwards) {
    begin_block(threads);
    release(0, threads);
    for (unsigned i = 0; i < threads; i++) fibers[i].turn = 0;
    pass.threads = threads;
    pass.backwards = backwards != 0;
    while (!all(0, threads, DONE)) {
        unsigned long before = progress;
        bool released = run_pass() || progress != before;
        for (unsigned w = 0; w < threads; w += GROUP_THREADS) {
            if (threads - w < GROUP_THREADS || !all(w, GROUP_THREADS, AT_GROUP)) continue;
            release(w, GROUP_THREADS);
            released = true;
        }
        for (unsigned w = 0; w < threads; w += WARP) {
            if (!all(w, WARP, AT_WARP) && !all(w, WARP, AT_EXCHANGE)) continue;
            release(w, WARP);
            released = true;
        }
        if (!released && all(0, threads, AT_BLOCK)) {
            release(0, threads);
            released = true;
        }
        if (!released && hidden) released = release_launch(threads);
        if (released || all(0, threads, DONE)) continue;
        // What waits in the middle of a kernel is of no use any more.
        for (unsigned i = 0; i < threads; i++) fibers[i].made = false;
        return 1;
    }
    return 0;
}

// A block from the rise of its first thread to the end of its last.
static int run_hidden(unsigned threads, int backwards) {
    hidden = curtain != 0;
    if (hidden) curtain(behind, 0);
    int failed = run_block(threads, backwards);
    if (hidden) curtain(behind, 1);
    hidden = false;
    return failed;
}

extern "C" int emulate(void (*kernel)(const void*), const void* args, const unsigned* shape, int backwards, Curtain early,
                       void* context) {
    if (shape[2] % WARP != 0 || shape[2] > MOST_THREADS) return 2;
    the_kernel = kernel;
    the_args = args;
    curtain = early;
    behind = context;
    waited = 0;
    gridDim.x = shape[0];
    gridDim.y = shape[1];
    blockDim.x = shape[2];
    for (blockIdx.y = 0; blockIdx.y < shape[1]; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < shape[0]; blockIdx.x++) {
            int failed = run_hidden(shape[2], backwards);
            if (failed) return failed;
        }
    // What is launched after it takes it that all before has ended when this one has.
    return early && waited == 0 ? 3 : 0;
}

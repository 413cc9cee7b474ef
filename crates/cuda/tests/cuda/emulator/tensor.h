// Tensor cores, copies beside the arithmetic and barriers in shared memory, for the host. Kernels see the functions of
// tensor.cuh and warpgroup.cuh; what a device may do late is done as late as it may be, so that a missing wait shows.
#define SHARED_BYTES(name) static unsigned char name[232448] __attribute__((aligned(1024)))

// Copies of a thread that nobody has waited for yet.
struct Copies {
    unsigned n, ended;
    struct {
        void* to;
        const void* from;
        bool there;
        unsigned group;
    } of[256];
};
static Copies copies[MOST_THREADS];

static inline void copy_piece(void* to, const void* from, bool there) {
    Copies& mine = copies[current];
    if (mine.n == 256) abort();
    mine.of[mine.n].to = to;
    mine.of[mine.n].from = from;
    mine.of[mine.n].there = there;
    mine.of[mine.n++].group = mine.ended;
}

static inline void end_group() { copies[current].ended++; }

template <int N>
static inline void wait_groups() {
    Copies& mine = copies[current];
    unsigned kept = 0;
    for (unsigned i = 0; i < mine.n; i++) {
        if (mine.of[i].group + N >= mine.ended) mine.of[kept++] = mine.of[i];
        else if (mine.of[i].there) memcpy(mine.of[i].to, mine.of[i].from, 16);
        else memset(mine.of[i].to, 0, 16);
    }
    mine.n = kept;
}

static void begin_block(unsigned threads) {
    for (unsigned i = 0; i < threads; i++) copies[i].n = copies[i].ended = 0;
}

static inline float host_bf16(unsigned bits) { return __uint_as_float(bits << 16); }

static inline unsigned host_round(float f) {
    unsigned bits = __float_as_uint(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

static inline unsigned pack_bf16(float low, float high) { return host_round(low) | host_round(high) << 16; }

// The row that lane `lane` of a warp names.
static inline const unsigned short* row_of(const Slot* lanes, unsigned lane) {
    return handed<const unsigned short*>(lanes, lane);
}

static inline void load_matrices(unsigned* m, const void* row) {
    const Slot* lanes = hand_over(row);
    unsigned lane = current % WARP;
    for (unsigned i = 0; i < 4; i++) memcpy(&m[i], row_of(lanes, 8 * i + lane / 4) + lane % 4 * 2, 4);
}

static inline void load_transposed(unsigned* m, const void* row) {
    const Slot* lanes = hand_over(row);
    unsigned lane = current % WARP;
    for (unsigned i = 0; i < 4; i++) {
        unsigned low = row_of(lanes, 8 * i + lane % 4 * 2)[lane / 4];
        m[i] = low | (unsigned)row_of(lanes, 8 * i + lane % 4 * 2 + 1)[lane / 4] << 16;
    }
}

// A barrier: in the place of the device's eight bytes.
struct Barrier {
    unsigned char arrivals, left, parity, unused;
    int bytes;
};

static inline void settle(Barrier* b) {
    progress++;
    if (b->left > 0 || b->bytes != 0) return;
    b->parity ^= 1;
    b->left = b->arrivals;
}

static inline void begin_barrier(unsigned long long* at, unsigned arrivals) {
    Barrier b = {(unsigned char)arrivals, (unsigned char)arrivals, 0, 0, 0};
    memcpy(at, &b, sizeof b);
}

static inline void arrive_with(unsigned long long* at, unsigned bytes) {
    Barrier* b = (Barrier*)at;
    b->left--;
    b->bytes += bytes;
    settle(b);
}

static inline void arrive(unsigned long long* at) { arrive_with(at, 0); }

static inline void arrive_with_copies(unsigned long long* at) {
    end_group();
    wait_groups<0>();
    arrive(at);
}

static inline void wait_phase(unsigned long long* at, unsigned parity) {
    while (((volatile Barrier*)at)->parity == parity) wait_at(READY);
}

static inline void show_barriers() {}
static inline void show_to_products() {}
static inline void begin_products() {}
static inline void end_products() {}
template <int N>
static inline void wait_products() {}
template <int N>
static inline void fewer_registers() {}
template <int N>
static inline void more_registers() {}
static inline void stop() { abort(); }
static inline void meet_warpgroup() { wait_at(AT_GROUP); }

// Bytes before element `c` of row `r` of a swizzled tile.
static inline unsigned element_at(unsigned r, unsigned c) { return r * 128 + ((c / 8 ^ r % 8) * 8 + c % 8) * 2; }

static inline float element(const unsigned char* tile, unsigned r, unsigned c) {
    unsigned short bits;
    memcpy(&bits, tile + element_at(r, c), 2);
    return host_bf16(bits);
}

// A map is an address, rows, columns, and the rows of a tile; tiles are 64 columns wide.
static inline void copy_mapped(void* to, const void* map, unsigned long long* at, unsigned column, unsigned row) {
    const unsigned long long* m = (const unsigned long long*)map;
    for (unsigned r = 0; r < m[3]; r++)
        for (unsigned c = 0; c < 64; c += 8) {
            unsigned char* piece = (unsigned char*)to + element_at(r, c);
            if (row + r >= m[1] || column + c >= m[2]) memset(piece, 0, 16);
            else memcpy(piece, (const unsigned char*)m[0] + ((row + r) * m[2] + column + c) * 2, 16);
        }
    ((Barrier*)at)->bytes -= (int)m[3] * 128;
    settle((Barrier*)at);
}

// Elements [c, c + 16) of row `r` of a swizzled tile, c being a multiple of 16.
static inline void row_of_tile(float* to, const unsigned char* tile, unsigned r, unsigned c) {
    for (unsigned half = 0; half < 2; half++) {
        unsigned short bits[8];
        memcpy(bits, tile + element_at(r, c + 8 * half), sizeof bits);
        for (unsigned i = 0; i < 8; i++) to[8 * half + i] = host_bf16(bits[i]);
    }
}

// One thread's part of d [64, N] by a warpgroup, `left` and `right` giving 16 operands of a row and of a column.
template <int N, typename Left, typename Right>
static inline void host_products(float* d, int keep, Left left, Right right) {
    unsigned t = current % 4;
    float a[2][16];
    for (unsigned half = 0; half < 2; half++) left(a[half], half);
    for (unsigned j = 0; j < N / 8; j++) {
        float b[2][16], sums[4];
        for (unsigned l = 0; l < 2; l++) right(b[l], 8 * j + 2 * t + l);
        for (unsigned i = 0; i < 4; i++) sums[i] = keep ? d[4 * j + i] : 0.0f;
        // Four sums side by side, each one product after the other.
        for (unsigned k = 0; k < 16; k++)
            for (unsigned i = 0; i < 4; i++) sums[i] += a[i / 2][k] * b[i % 2][k];
        memcpy(&d[4 * j], sums, sizeof sums);
    }
}

template <int N>
static inline void multiply_tiles(float* d, const unsigned char* a, const unsigned char* b, unsigned k, int keep = 1) {
    unsigned row = current % 128 / WARP * 16 + current % WARP / 4;
    host_products<N>(
        d, keep, [&](float* to, unsigned half) { row_of_tile(to, a, row + 8 * half, 16 * k); },
        [&](float* to, unsigned n) { row_of_tile(to, b, n, 16 * k); });
}

// What a lane holds of the rows on the left.
struct Rows {
    unsigned pairs[4];
};

template <int N>
static inline void multiply_rows(float* d, const unsigned* a, const unsigned char* b, unsigned panel) {
    Rows mine, left[4];
    memcpy(mine.pairs, a, sizeof mine.pairs);
    const Slot* lanes = hand_over(mine);
    for (unsigned i = 0; i < 4; i++) left[i] = handed<Rows>(lanes, current % WARP / 4 * 4 + i);
    host_products<N>(
        d, 1,
        [&](float* to, unsigned half) {
            for (unsigned i = 0; i < 16; i++)
                to[i] = host_bf16(left[i % 8 / 2].pairs[half + i / 8 * 2] >> i % 2 * 16 & 0xffffu);
        },
        [&](float* to, unsigned n) {
            for (unsigned i = 0; i < 16; i++) to[i] = element(b + n / 64 * panel, i, n % 64);
        });
}

// Products of a warpgroup (128 threads) whose operands stay in shared memory: Hopper's wgmma.
//
// d [64, N] += a [64, 16] b [N, 16]^T. Thread 32 w + 4 g + t has of d rows 16 w + g and 16 w + g + 8; of each eight
// columns 2 t and 2 t + 1: d[4 j] and d[4 j + 1] of the first row, d[4 j + 2] and d[4 j + 3] of the second.

#ifndef TARE_HOST
// A barrier in shared memory that threads arrive at and bytes of copies are counted by. It has phases: who waits names
// the parity of the one that must have ended, 0 for the first.
DEVICE void begin_barrier(u64* b, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(in_shared(b)), "r"(arrivals) : "memory");
}

// After the last begin_barrier and before the block's barrier: copies see them too.
DEVICE void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

DEVICE void arrive(u64* b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(in_shared(b)) : "memory");
}

// Arrives, and the phase does not end before that many bytes have come.
DEVICE void arrive_with(u64* b, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(in_shared(b)), "r"(bytes) : "memory");
}

// Arrives when all copies that this thread began have come.
DEVICE void arrive_with_copies(u64* b) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(in_shared(b)) : "memory");
}

DEVICE void wait_phase(u64* b, u32 parity) {
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; }" ::"r"(
                     in_shared(b)),
                 "r"(parity)
                 : "memory");
}

// All 128 threads of this warpgroup.
DEVICE void meet_warpgroup() { asm volatile("bar.sync %0, 128;" ::"r"(1 + threadIdx.x / 128) : "memory"); }

// Ends the program with an error.
DEVICE void stop() { asm volatile("trap;"); }

// Registers of a thread of this warpgroup from here on.
template <int N>
DEVICE void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N>
DEVICE void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

// Begins to copy a tile of the matrix that `map` names, from this column and row on; `b` counts its bytes.
DEVICE void copy_mapped(void* to, const void* map, u64* b, u32 column, u32 row) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
            in_shared(to)),
        "l"(map), "r"(in_shared(b)), "r"(column), "r"(row)
        : "memory");
}

// A tile as the instruction wants it named: its address, units of 16 bytes from panel to panel where rows have more than
// one, 1024 bytes from eight rows to the next, swizzled by 128.
DEVICE u64 tile_name(const u8* tile, u64 panel) {
    return (u64)(in_shared(tile) >> 4 & 0x3fffu) | panel << 16 | 64ull << 32 | 1ull << 62;
}

// What threads wrote to shared memory by copies or stores becomes visible to the products that follow a barrier.
DEVICE void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Before the first product of a group: registers are as the program left them.
DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

DEVICE void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most N groups of products are under way.
template <int N>
DEVICE void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Registers of d as operands, and their names in the text of an instruction.
#define F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F8(i) F4(i), F4(i + 4)
#define F32(i) F8(i), F8(i + 8), F8(i + 16), F8(i + 24)
#define NAMES_32 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15" \
    ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_64 NAMES_32 \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
    ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES_80 NAMES_64 \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define NAMES_128 NAMES_80 \
    ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95" \
    ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
    ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// Both operands as they are; `keep` says whether d is added to or begun anew.
#define WGMMA(n, names, a, b, keep)                      \
    "{ .reg .pred p; setp.ne.b32 p, %" keep ", 0; "      \
    "wgmma.mma_async.sync.aligned.m64n" n                \
    "k16.f32.bf16.bf16 {" names "}, %" a ", %" b ", p, 1, 1, 0, 0; }"

// The same with a in registers and b [16, N] in panels of 64 columns.
#define WGMMA_BY_ROWS(n, names, a, b, c, d, at, keep)    \
    "{ .reg .pred p; setp.ne.b32 p, %" keep ", 0; "      \
    "wgmma.mma_async.sync.aligned.m64n" n                \
    "k16.f32.bf16.bf16 {" names "}, {%" a ", %" b ", %" c ", %" d "}, %" at ", p, 1, 1, 1; }"

// d = keep * d + a b^T of 16 columns, `k` of 4 in tiles a [64, 64] and b [N, 64].
template <int N>
DEVICE void multiply_tiles(float* d, const u8* a, const u8* b, u32 k, int keep = 1) {
    u64 at = tile_name(a, 1) + 2 * k, bt = tile_name(b, 1) + 2 * k;
    if constexpr (N == 64) asm volatile(WGMMA("64", NAMES_32, "32", "33", "34") : F32(0) : "l"(at), "l"(bt), "r"(keep));
    if constexpr (N == 128)
        asm volatile(WGMMA("128", NAMES_64, "64", "65", "66") : F32(0), F32(32) : "l"(at), "l"(bt), "r"(keep));
    if constexpr (N == 160)
        asm volatile(WGMMA("160", NAMES_80, "80", "81", "82")
                     : F32(0), F32(32), F8(64), F8(72)
                     : "l"(at), "l"(bt), "r"(keep));
    if constexpr (N == 256)
        asm volatile(WGMMA("256", NAMES_128, "128", "129", "130")
                     : F32(0), F32(32), F32(64), F32(96)
                     : "l"(at), "l"(bt), "r"(keep));
}

// d += a b with a [64, 16] in registers, each warp's 16 rows as multiply takes them, and b [16, N] rows of panels of 64
// columns that lie `panel` bytes apart.
template <int N>
DEVICE void multiply_rows(float* d, const u32* a, const u8* b, u32 panel) {
    u64 bt = tile_name(b, panel / 16);
    if constexpr (N == 64)
        asm volatile(WGMMA_BY_ROWS("64", NAMES_32, "32", "33", "34", "35", "36", "37")
                     : F32(0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(bt), "r"(1));
    if constexpr (N == 128)
        asm volatile(WGMMA_BY_ROWS("128", NAMES_64, "64", "65", "66", "67", "68", "69")
                     : F32(0), F32(32)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(bt), "r"(1));
}
#endif

// Time that is spent on purpose, behind a launch that the laboratory makes slower.
//
// math: waits until as many cycles of its multiprocessor have gone by as are asked for, and adds to a count those that have
// shapes: one block of one warp, of which one thread waits
// layout: count: one number of 64 bits
// precision: a few cycles too many, which are counted with the rest
// preconditions: it is not launched early and lets nothing start: what comes before has ended, and what comes after begins
//   when it has ended, also where that is launched early
// cost: the cycles, and what a launch costs that stands in the way of its neighbours
// tolerance: none: it changes nothing but the count
// wins: cycles are counted one by one; the timer that all multiprocessors share moves in steps that a device chooses, of
//   32 ns or of a microsecond, in which a short delay would be lost
// loses: cycles are no nanoseconds: their rate is measured on the device by its own clock, right before they are asked for
// fallback: none
// evidence: none yet
// source: PTX ISA, special registers

struct DelayArgs {
    u64* count;
    u64 cycles;
};

DEVICE u64 cycle() {
#ifdef TARE_HOST
    return host_cycle();
#else
    u64 now;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
    return now;
#endif
}

KERNEL(delay, DelayArgs, 32) {
    if (threadIdx.x != 0) return;
    u64 begin = cycle(), spent = 0;
    while (spent < a.cycles) spent = cycle() - begin;
    *a.count += spent;
}

// What the kernels that measure a device take.

struct CeilingArgs {
    const uint4* words;
    u32* out;   // [grid]
    u64 count;  // reads: uint4s; multiply_add and products: rounds
};

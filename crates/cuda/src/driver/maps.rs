//! Names for matrices that a device copies in tiles: the driver's tensor maps.

use cudarc::driver::sys;
use tare_ops::OpError;

use crate::device::{TileMap, Tiled, failed};
use crate::probe::say;

/// Columns of a tile: 128 bytes, which is what the copies swizzle.
const TILE_COLUMNS: u32 = 64;

/// The map of a matrix, for the context that is bound.
///
/// # Errors
/// When the driver refuses.
pub(super) fn encode(matrix: Tiled) -> Result<TileMap, OpError> {
    let mut map = sys::CUtensorMap { opaque: [0; 16] };
    let (dims, stride) = ([matrix.columns as u64, matrix.rows as u64], [2 * matrix.columns as u64]);
    let (tile, steps) = ([TILE_COLUMNS, matrix.tile_rows as u32], [1, 1]);
    // SAFETY: as many entries as the dimensions that are named, of the stride one less; the driver checks the rest.
    let code = unsafe {
        sys::cuTensorMapEncodeTiled(
            &raw mut map,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            2,
            matrix.at.0 as *mut std::ffi::c_void,
            dims.as_ptr(),
            stride.as_ptr(),
            tile.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    code.result().map_err(|e| failed("map of a matrix in tiles", say(&e)))?;
    Ok(map.opaque)
}

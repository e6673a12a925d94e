// Space: which pages of the pool are in use, by whom, and since when.
//
// The usual life of a page:
//
//   reserve_pages -> allocate_run -> commit_extent -> ... -> free_extent -> (checkpoint) -> free
//                        |
//                        +-> abandon_extent: back to the command's reservation
//
// unreserve_pages makes the rest of a reservation available to all commands.
//
// Six bits for each page of a chunk show its state (raid::ChunkBitmaps). Reservation, allocation and release are
// lock-free; a checkpoint's snapshot needs only the closed commit gate.
#pragma once

#include "space/allocate.hpp"
#include "space/chunk_checkpoint.hpp"
#include "space/chunk_load.hpp"
#include "space/extents.hpp"
#include "space/freeze.hpp"
#include "space/partial_stripes.hpp"
#include "space/reserve.hpp"

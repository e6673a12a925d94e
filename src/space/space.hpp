// Space: which pages of the pool are in use, by whom, and since when.
//
// The common way of a page:
//
//   reserve_pages -> allocate_run -> commit_extent -> ... -> free_extent -> (checkpoint) -> free
//                        |
//                        +-> abandon_extent: back to the command's reservation
//
// unreserve_pages gives the rest of a reservation back to everyone.
//
// Per chunk and page six bits say where it is on this way (raid::ChunkBitmaps). Reservation,
// allocation and release are lock-free; a checkpoint's snapshot needs the commit gate closed and
// nothing else.
#pragma once

#include "space/allocate.hpp"
#include "space/chunk_checkpoint.hpp"
#include "space/chunk_load.hpp"
#include "space/extents.hpp"
#include "space/freeze.hpp"
#include "space/partial_stripes.hpp"
#include "space/reserve.hpp"

// The FUSE operations, each a command to the engine, and their shared functions. Private to this folder.
#pragma once

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include <sys/stat.h>

#include "format/inode_format.hpp"
#include "frontend/fuse/fuse_worker.hpp"
#include "frontend/fuse/kernel_cache.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::frontend {

void add_name_operations(fuse_lowlevel_ops& operations);
void add_file_operations(fuse_lowlevel_ops& operations);
void add_directory_operations(fuse_lowlevel_ops& operations);
void add_attribute_operations(fuse_lowlevel_ops& operations);
void add_control_operations(fuse_lowlevel_ops& operations);

struct stat to_stat(const format::AttributeRecord& record);
// The entry of the inode in `record`; counts a lookup.
fuse_entry_param to_entry(FuseWorker& worker, const format::AttributeRecord& record);

void reply_status(fuse_req_t request, Status status);
}  // namespace gpu4fs::frontend

// Which commands a mount with `sync` or `dirsync` makes durable before it answers.
#include <gtest/gtest.h>

#include <set>

#include "frontend/fuse/fuse_worker.hpp"
#include "wire/command_list.hpp"

namespace gpu4fs::frontend {
namespace {

using wire::Opcode;

// The promises of mount(8).
const std::set<Opcode> changes_of_content = {Opcode::write,           Opcode::truncate, Opcode::fallocate,
                                             Opcode::copy_range,      Opcode::setattr,  Opcode::set_attribute,
                                             Opcode::remove_attribute};
const std::set<Opcode> changes_of_names = {Opcode::mknod,  Opcode::mkdir,   Opcode::symlink,
                                           Opcode::create, Opcode::tmpfile, Opcode::link,
                                           Opcode::unlink, Opcode::rmdir,   Opcode::rename};

TEST(Synchronous, WaitsForWhatChanges) {
  FuseOptions none;
  FuseOptions sync;
  sync.synchronous = true;
  FuseOptions directories;
  directories.synchronous_directories = true;
  for (const wire::CommandRow& row : wire::command_rows) {
    const char* name = wire::command_name(row.opcode);
    const bool is_content = row.effect == wire::Effect::content;
    const bool is_names = row.effect == wire::Effect::names;
    EXPECT_TRUE(is_content || changes_of_content.count(row.opcode) == 0) << name;
    EXPECT_TRUE(is_names || changes_of_names.count(row.opcode) == 0) << name;
    EXPECT_FALSE(waits_for_sync(none, row.opcode)) << name;
    EXPECT_EQ(waits_for_sync(sync, row.opcode), is_content || is_names) << name;
    EXPECT_EQ(waits_for_sync(directories, row.opcode), is_names) << name;
  }
}

// A command without a row is not answered before it is durable.
TEST(Synchronous, WhatHasNoRowWaits) {
  FuseOptions sync;
  sync.synchronous = true;
  FuseOptions directories;
  directories.synchronous_directories = true;
  for (const Opcode opcode : {Opcode::none, Opcode::count, static_cast<Opcode>(0xffff)}) {
    EXPECT_TRUE(waits_for_sync(sync, opcode));
    EXPECT_TRUE(waits_for_sync(directories, opcode));
    EXPECT_FALSE(waits_for_sync(FuseOptions{}, opcode));
  }
}

}  // namespace
}  // namespace gpu4fs::frontend

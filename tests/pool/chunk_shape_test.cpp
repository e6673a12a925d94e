#include "pool/chunk_shape.hpp"

#include <gtest/gtest.h>

#include <string>

#include "format/superblock_format.hpp"

namespace gpu4fs::pool {
namespace {

TEST(ChunkShape, WhatDoesNotFitIsNamed) {
  format::ChunkDescriptor chunk{};
  chunk.size_bytes = format::chunk_size_min * 2;
  chunk.level = format::RaidLevel::raid0;
  chunk.column_count = 2;
  chunk.stripe_length_bytes = 65536;
  EXPECT_EQ(find_shape_problem(chunk), nullptr);
  const auto problem_with = [&](auto change) {
    format::ChunkDescriptor other = chunk;
    change(other);
    const char* problem = find_shape_problem(other);
    return std::string(problem == nullptr ? "" : problem);
  };
  EXPECT_NE(problem_with([](auto& c) { c.stripe_length_bytes = 0; }), "");
  EXPECT_NE(problem_with([](auto& c) { c.stripe_length_bytes = 2048; }), "");
  EXPECT_NE(problem_with([](auto& c) { c.stripe_length_bytes = 3 << 16; }), "");
  EXPECT_NE(problem_with([](auto& c) { c.stripe_length_bytes = 2 << 20; }), "");
  EXPECT_NE(problem_with([](auto& c) { c.column_count = 1; }), "");
  EXPECT_NE(problem_with([](auto& c) { c.column_count = 65; }), "");
  EXPECT_NE(problem_with([](auto& c) { c.redundancy = 1; }), "");
  EXPECT_NE(problem_with([](auto& c) { c.level = format::RaidLevel::raid5; }), "");
  EXPECT_NE(problem_with([](auto& c) { c.level = static_cast<format::RaidLevel>(99); }), "");
  EXPECT_NE(problem_with([](auto& c) { c.size_bytes += 4096; }), "");
  EXPECT_NE(problem_with([](auto& c) { c.level = format::RaidLevel::raid1; }), "");
}

}  // namespace
}  // namespace gpu4fs::pool

// Rows of benchmarks: which requirements are met or missed, and that a file keeps everything.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "base/limits.hpp"
#include "bench/client.hpp"
#include "bench/result.hpp"

namespace gpu4fs::bench {
namespace {

BenchRow make_row(double value, double limit, Requirement requirement, double required) {
  BenchRow row;
  row.name = "row";
  row.unit = "GB/s";
  set_samples(row, {value});
  row.limit = limit;
  row.limit_what = "limit";
  row.requirement = requirement;
  row.required = required;
  return row;
}

TEST(BenchResultTest, RatioIsJudgedWhereThereIsALimit) {
  EXPECT_TRUE(make_row(40, 50, Requirement::at_least, 0.8).is_met());
  EXPECT_FALSE(make_row(39, 50, Requirement::at_least, 0.8).is_met());
  EXPECT_TRUE(make_row(3, 0, Requirement::at_most, 3).is_met());
  EXPECT_FALSE(make_row(3.1, 0, Requirement::at_most, 3).is_met());
  EXPECT_TRUE(make_row(0, 50, Requirement::none, 1).is_met());
}

TEST(BenchResultTest, MedianAndPercentiles) {
  BenchRow row;
  set_samples(row, {5, 1, 3, 100});
  EXPECT_DOUBLE_EQ(row.value, 4);
  EXPECT_DOUBLE_EQ(row.least, 1);
  EXPECT_DOUBLE_EQ(row.greatest, 100);
  EXPECT_EQ(row.sample_count, 4u);
  EXPECT_DOUBLE_EQ(percentile({4, 3, 2, 1}, 0.5), 2);
  EXPECT_DOUBLE_EQ(percentile({4, 3, 2, 1}, 0.99), 4);
  EXPECT_DOUBLE_EQ(percentile({7}, 0.01), 7);
}

TEST(BenchResultTest, SurvivesAFile) {
  BenchResult result;
  result.benchmark = "run";
  result.engine = "cpu";
  result.commit = "abc";
  result.quick = true;
  result.machine = describe_machine();
  result.rows = {make_row(40, 50, Requirement::at_least, 0.8), make_row(9, 0, Requirement::at_most, 3)};
  result.left_out = {"vram: no GPU"};
  const std::string path =
      (std::filesystem::temp_directory_path() / ("gpu4fs-result-" + std::to_string(::getpid()))).string();
  write_result(result, path);
  const BenchResult read = read_result(path);
  EXPECT_EQ(read.benchmark, "run");
  EXPECT_EQ(read.machine.kernel, result.machine.kernel);
  ASSERT_EQ(read.rows.size(), 2u);
  EXPECT_DOUBLE_EQ(read.rows[0].judged(), 0.8);
  EXPECT_EQ(read.rows[1].requirement, Requirement::at_most);
  EXPECT_EQ(count_short(read), 1u);
  EXPECT_EQ(read.left_out, result.left_out);
  std::ofstream(path) << "{\"a\": ";
  EXPECT_THROW(read_result(path), std::runtime_error);
  std::ofstream(path) << "{}";
  EXPECT_THROW(read_result(path), std::runtime_error);
  std::filesystem::remove(path);
  EXPECT_THROW(read_result(path), std::runtime_error);
}

TEST(BenchPatternTest, EveryFlippedBitIsNoticed) {
  std::vector<u64> content(4 * page_size / 8);
  fill_pattern(content.data(), 3, 10, 4);
  check_pattern(content.data(), 3, 10, 4);
  check_pattern(content.data() + page_size / 8, 3, 11, 3);
  EXPECT_THROW(check_pattern(content.data(), 3, 11, 4), std::runtime_error);
  EXPECT_THROW(check_pattern(content.data(), 4, 10, 4), std::runtime_error);
  for (const std::size_t word : {std::size_t{0}, std::size_t{511}, std::size_t{2047}}) {
    content[word] ^= u64{1} << (word % 64);
    EXPECT_THROW(check_pattern(content.data(), 3, 10, 4), std::runtime_error);
    content[word] ^= u64{1} << (word % 64);
  }
}

}  // namespace
}  // namespace gpu4fs::bench

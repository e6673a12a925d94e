// Calibration of a file in the working directory. Times are not compared with anything.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "route/calibration.hpp"
#include "route/route_error.hpp"

namespace gpu4fs::route {
namespace {

class CalibrationTest : public testing::Test {
 protected:
  void SetUp() override {
    fd_ = ::mkstemp(path_.data());
    ASSERT_GE(fd_, 0);
    const std::vector<char> bytes(file_bytes, 'x');
    ASSERT_EQ(::pwrite(fd_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    ASSERT_EQ(::fsync(fd_), 0);
  }
  void TearDown() override {
    ::close(fd_);
    ::unlink(path_.c_str());
  }

  std::string fault(Route route, const CalibrationSizes& sizes) {
    try {
      measure_route(path_, route, sizes);
    } catch (const RouteError& error) {
      return error.what();
    }
    return "";
  }

  static constexpr u64 file_bytes = u64{1} << 20;
  static constexpr CalibrationSizes small = {4096, file_bytes, 3};
  std::string path_ = "route_calibration_XXXXXX";
  int fd_ = -1;
};

void expect_all_sizes(const std::vector<CostSample>& samples) {
  ASSERT_EQ(samples.size(), 9u);
  for (u32 i = 0; i < 9; ++i) {
    EXPECT_EQ(samples[i].bytes, u64{4096} << i);
    EXPECT_GT(samples[i].ns, 0);
  }
}

TEST_F(CalibrationTest, ThePageCacheIsMeasured) {
  expect_all_sizes(measure_route(path_, Route::cached, small));
}

TEST_F(CalibrationTest, DirectReadsAreMeasured) {
  if (fault(Route::direct, small).find("no direct I/O") != std::string::npos) {
    GTEST_SKIP() << "the file system here has no direct I/O";
  }
  expect_all_sizes(measure_route(path_, Route::direct, small));
}

TEST_F(CalibrationTest, WhatCannotBeMeasuredIsNamed) {
  EXPECT_NE(fault(Route::cached, {4096, 2 * file_bytes, 1}).find("at least 2097152 bytes"), std::string::npos);
  EXPECT_NE(fault(Route::cached, {2048, file_bytes, 1}).find("sizes from 2048"), std::string::npos);
  EXPECT_NE(fault(Route::cached, {4096, 3 * 4096, 1}).find("to 12288"), std::string::npos);
  EXPECT_NE(fault(Route::cached, {4096, file_bytes, 0}).find("0 times"), std::string::npos);
  EXPECT_NE(fault(Route::engine, small).find("engine"), std::string::npos);
  EXPECT_THROW(measure_route(path_ + ".none", Route::cached, small), RouteError);
  EXPECT_THROW(measure_route("/", Route::cached, small), RouteError);
}

TEST_F(CalibrationTest, ADeviceHasOneName) {
  EXPECT_FALSE(device_name_of(path_).empty());
  EXPECT_EQ(device_name_of(path_), device_name_of("."));
  EXPECT_NE(device_name_of(path_), device_name_of("/proc/self/status"));
  EXPECT_THROW(device_name_of(path_ + ".none"), RouteError);
}

}  // namespace
}  // namespace gpu4fs::route

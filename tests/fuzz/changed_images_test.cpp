// Pools with changed structures and right checksums: on every level of redundancy, unmounted ones and ones with a log,
// with all devices or without one. fsck checks each; it is mounted, everything is read, files are created and written;
// it is unmounted, checked and mounted again. None of this crashes or hangs. Items that the change did not affect are
// unchanged, or an error: none of their bytes is wrong.
//
// GPU4FS_IMAGE_SEED and GPU4FS_IMAGE_COUNT choose the changes (make fuzz-images); the seed of each is printed before
// it.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "fuzz/image_structures.hpp"
#include "pool/pool_error.hpp"
#include "support/saved_devices.hpp"
#include "support/test_pool.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::changed_images {
namespace {

constexpr u32 case_seconds_max = 120;

struct Shape {
  const char* profile;
  u32 device_count;
  bool is_redundant;
};
constexpr Shape shapes[] = {
    {"single", 1, false}, {"raid1", 2, true}, {"raid5", 3, true}, {"raid6", 4, true}, {"raid5+raid1", 3, true}};

// A populated pool in its final state.
class Image {
 public:
  Image(const Shape& shape, bool has_log) : shape_(shape), pool_(options(shape)) {
    {
      const auto session = pool_.open_session();
      FileClient client(*session);
      content_.populate(client);
    }
    pool_.unmount();
    if (has_log) {
      pool_.mount();
      const auto session = pool_.open_session();
      FileClient client(*session);
      content_.change(client);
    }
    if (has_log) pool_.crash();
    saved_ = std::make_unique<SavedDevices>(pool_.device_paths());
    structures_ = std::make_unique<ImageStructures>(pool_.device_paths(), content_);
    text_ = fmt::format("{}{}", shape.profile, has_log ? " with a log" : "");
  }

  const std::string& text() const { return text_; }
  const Shape& shape() const { return shape_; }
  TestPool& pool() { return pool_; }
  const ImageContent& content() const { return content_; }
  ImageStructures& structures() { return *structures_; }
  // Moves the device's file to where the mount does not find it.
  void lose(u32 device) {
    std::filesystem::create_directory(away());
    std::filesystem::rename(pool_.device_paths()[device], away() + std::to_string(device));
  }
  void restore() {
    pool_.crash();
    for (u32 d = 0; d < shape_.device_count; ++d) {
      const std::string lost = away() + std::to_string(d);
      if (std::filesystem::exists(lost)) std::filesystem::rename(lost, pool_.device_paths()[d]);
    }
    saved_->restore(0);
  }

 private:
  std::string away() const { return std::filesystem::path(pool_.device_paths()[0]).parent_path().string() + "/away/"; }
  static TestPoolOptions options(const Shape& shape) {
    TestPoolOptions options;
    options.profile = shape.profile;
    options.device_count = shape.device_count;
    options.device_bytes = u64{32} << 20;
    options.starts_workers = false;
    options.memory = {.frame_count = 1024, .staging_count = 512, .shard_count = 2};
    options.session_bytes = u64{256} << 10;
    options.config.command_count = 64;
    return options;
  }

  Shape shape_;
  TestPool pool_;
  ImageContent content_;
  std::unique_ptr<SavedDevices> saved_;
  std::unique_ptr<ImageStructures> structures_;
  std::string text_;
};

std::string& current_case() {
  static std::string text;
  return text;
}
void say_that_it_hangs(int) {
  const std::string text = "a changed image hangs: " + current_case() + "\n";
  (void)!::write(STDERR_FILENO, text.data(), text.size());
  ::abort();
}

// Counts of the outcomes.
struct Counts {
  u64 cases = 0;
  u64 mounted = 0;
  u64 untouched = 0;  // items in those
  u64 mounted_again = 0;
};

class ImageRun {
 public:
  ImageRun(Image& image, u64 seed) : image_(image), random_(seed), content_(image.content()) {}

  std::vector<std::string> find_problems(Counts& counts) {
    image_.restore();
    for (u64 count = 1 + random_.next() % 3; count > 0; --count) image_.structures().change(random_, touched_);
    lose_device();
    current_case() += touched_.text;
    check();
    if (mount()) {
      ++counts.mounted;
      counts.untouched += content_.items.size() - touched_.items.size();
      look("at first");
      work();
      look("after writing");
      end();
      check();
      if (mount()) {
        ++counts.mounted_again;
        look("mounted again");
      }
    }
    image_.restore();
    return std::move(problems_);
  }

 private:
  void lose_device() {
    const bool loses = image_.shape().is_redundant && random_.next() % 4 == 0;
    image_.pool().options().degraded = loses;
    if (!loses) return;
    const u32 device = static_cast<u32>(random_.next() % image_.shape().device_count);
    image_.lose(device);
    touched_.text += fmt::format(" without device {}", device);
  }
  void check() {
    try {
      (void)image_.pool().check();
    } catch (const pool::PoolError&) {
    }
  }
  // False: the pool is refused.
  bool mount() {
    try {
      image_.pool().mount();
      return true;
    } catch (const std::runtime_error&) {
      image_.pool().crash();
      return false;
    }
  }
  void look(const char* stage) {
    const auto session = image_.pool().open_session();
    FileClient client(*session);
    for (std::string& problem : content_.find_problems(client, touched_.items, stage)) {
      problems_.push_back(std::move(problem));
    }
  }
  // Writes new files, and one of the old ones again: if a write was accepted, its content is right afterwards.
  void work() {
    const auto session = image_.pool().open_session();
    FileClient client(*session);
    const auto touch = [&](u32 item) { touched_.items.insert(item); };
    const bool is_certain = !touched_.space && !touched_.items.contains(0);
    for (u32 i = 0; i < 6; ++i) {
      ImageItem* const item = content_.try_add_file(client, fmt::format("new-{}", i));
      if (item == nullptr) continue;
      const bool written = content_.try_write(client, *item, 0, i % 2 == 0 ? 500 : 40'000);
      if (!written || !is_certain) touch(static_cast<u32>(content_.items.size() - 1));
      if (i == 2) (void)client.simple(wire::Opcode::sync);
      if (i == 3) (void)image_.pool().checkpoint();
    }
    std::vector<u32> changed;
    for (u32 i = 0; i < content_.items.size(); ++i) {
      ImageItem& item = content_.items[i];
      if (item.path.starts_with("new-")) changed.push_back(i);
      if (item.path != "small" && item.path != "directory/below/deep") continue;
      changed.push_back(i);
      if (touched_.items.contains(i) || !content_.try_write(client, item, 50, 5000)) touch(i);
    }
    // Data that is in no checkpoint may be lost in a crash.
    if (image_.pool().checkpoint() == Status::ok) return;
    for (const u32 i : changed) touch(i);
  }
  void end() {
    if (random_.next() % 2 == 0) {
      try {
        image_.pool().unmount();
        return;
      } catch (const std::runtime_error&) {  // the last checkpoint finds damage
      }
    }
    image_.pool().crash();
  }

  Image& image_;
  Sequence random_;
  ImageContent content_;  // in its current state
  Touched touched_;
  std::vector<std::string> problems_;
};

class ChangedImages : public ::testing::Test {
 protected:
  void SetUp() override { previous_ = ::signal(SIGALRM, say_that_it_hangs); }
  void TearDown() override {
    ::alarm(0);
    ::signal(SIGALRM, previous_);
  }

  // With a manifest that differs from the real content.
  static void expect_notice(FileClient& client, const ImageContent& content) {
    const auto expect = [&](const char* what, const std::string& path, auto&& change) {
      ImageContent other = content;
      change(other.item(path));
      const std::vector<std::string> problems = other.find_problems(client, {}, "canary");
      EXPECT_EQ(problems.size(), 1u) << what;
      const u32 index = static_cast<u32>(&other.item(path) - other.items.data());
      EXPECT_TRUE(other.find_problems(client, {index}, "canary").empty()) << what;
    };
    expect("a byte", "sparse", [](ImageItem& item) { item.parts.rbegin()->second[8000] ^= 1; });
    expect("a byte of zeros", "allocated", [](ImageItem& item) { item.parts[0] = {1}; });
    expect("an attribute", "plain", [](ImageItem& item) { item.attributes["user.name"] = "x"; });
    expect("a lost attribute", "plain", [](ImageItem& item) { item.attributes["user.other"] = "x"; });
    expect("a target", "long-link", [](ImageItem& item) { item.target[0] = 't'; });
    expect("a size", "inline", [](ImageItem& item) { item.size = 99; });
    expect("a mode", "empty", [](ImageItem& item) { item.mode ^= 1; });
    expect("an inode", "small", [](ImageItem& item) { ++item.inode; });
  }

 private:
  void (*previous_)(int) = nullptr;
};

TEST_F(ChangedImages, WhatWasNotTouchedIsRightOrAnError) {
  const u64 first = number_from("GPU4FS_IMAGE_SEED", 1);
  const u64 count = number_from("GPU4FS_IMAGE_COUNT", scaled(400));
  std::array<std::unique_ptr<Image>, 2 * std::size(shapes)> images;
  u64 failures = 0;
  Counts counts;
  for (u64 seed = first; seed < first + count && failures < 10; ++seed) {
    const u64 index = seed % images.size();
    if (!images[index]) images[index] = std::make_unique<Image>(shapes[index / 2], index % 2 == 1);
    current_case() = fmt::format("GPU4FS_IMAGE_SEED={} {}", seed, images[index]->text());
    std::printf("%s\n", current_case().c_str());
    std::fflush(stdout);
    ::alarm(case_seconds_max);
    ++counts.cases;
    const std::vector<std::string> problems = ImageRun(*images[index], seed).find_problems(counts);
    if (problems.empty()) continue;
    ++failures;
    std::string text;
    for (std::size_t i = 0; i < problems.size() && i < 8; ++i) text += "\n  " + problems[i];
    ADD_FAILURE() << current_case() << text;
  }
  std::printf("%llu images, %llu mounted with %llu untouched items, %llu mounted again\n",
              static_cast<unsigned long long>(counts.cases), static_cast<unsigned long long>(counts.mounted),
              static_cast<unsigned long long>(counts.untouched), static_cast<unsigned long long>(counts.mounted_again));
  EXPECT_GT(4 * counts.mounted, counts.cases) << "most are refused, and show nothing";
  EXPECT_GT(counts.untouched, 10 * counts.mounted);
  EXPECT_GT(2 * counts.mounted_again, counts.mounted);
}

// Unchanged items are found unchanged.
TEST_F(ChangedImages, AnUntouchedImageHasNoProblems) {
  for (u32 i = 0; i < 2 * std::size(shapes); ++i) {
    Image image(shapes[i / 2], i % 2 == 1);
    image.pool().mount();
    {
      const auto session = image.pool().open_session();
      FileClient client(*session);
      for (const std::string& problem : image.content().find_problems(client, {}, "untouched")) {
        ADD_FAILURE() << image.text() << ": " << problem;
      }
      expect_notice(client, image.content());
    }
    image.pool().unmount();
    EXPECT_EQ(image.pool().check().findings.error_count(), 0u) << image.text();
  }
}

}  // namespace
}  // namespace gpu4fs::test::changed_images

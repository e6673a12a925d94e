// The devices of a space in the form of scattered ones, with memory of their own (device/memory/scattered_pages.hpp).
//
// The layers above raid read header areas of many pages from memory devices, so a space has one form or the other, and
// can change between them. What is written in one form is not there in the other. The devices have a stack that
// compares accesses with announcements (announced_pages.hpp), but the space does not count as stacked.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/memory/mapped_file.hpp"
#include "raid/raid_types.hpp"
#include "support/announced_pages.hpp"

namespace gpu4fs::test {

class ScatteredMemory {
 public:
  // One device for each file, which holds its bytes.
  explicit ScatteredMemory(std::vector<device::MappedFile> files) : files_(std::move(files)) {
    for (const device::MappedFile& file : files_) {
      auto layer = std::make_unique<AnnouncedPages>(file.base(), file.size_bytes());
      pages_.push_back(layer.get());
      std::vector<std::unique_ptr<device::StackLayer>> layers;
      layers.push_back(std::move(layer));
      stacks_.push_back(std::make_unique<device::DeviceStack>(std::move(layers)));
      stacks_.back()->attach(file.size_bytes());
      stacks_.back()->map(file.base(), true);
    }
  }

  ScatteredMemory(const ScatteredMemory&) = delete;
  ScatteredMemory& operator=(const ScatteredMemory&) = delete;
  ~ScatteredMemory() { finish_call(); }

  // The devices of the space get this form. A device without memory stays without.
  void take_over(raid::LogicalSpace& space) {
    for (u32 d = 0; d < files_.size(); ++d) {
      device::Device& device = space.devices[d];
      device.kind = device::DeviceKind::scattered;
      device.stack = stacks_[d].get();
      if (device.base != nullptr) device.base = files_[d].base();
    }
    space.pages_apart = 1;
    space_ = &space;
  }

  // The end of a call into raid: what was noted during the call ends the program. Kernel tests have no gtest.
  void finish_call() {
    bool failed = false;
    for (u32 d = 0; d < files_.size() && space_ != nullptr; ++d) {
      for (const std::string& problem : problems_of(d)) {
        std::fprintf(stderr, "device %u: %s\n", d, problem.c_str());
        failed = true;
      }
    }
    if (failed) std::abort();
  }
  std::vector<std::string> problems_of(u32 device) {
    pages_[device]->finish(device::has_failed(space_->devices[device]));
    return pages_[device]->take_problems();
  }

  AnnouncedPages& pages(u32 device) { return *pages_[device]; }
  const std::vector<device::MappedFile>& files() const { return files_; }

 private:
  std::vector<device::MappedFile> files_;
  std::vector<AnnouncedPages*> pages_;
  std::vector<std::unique_ptr<device::DeviceStack>> stacks_;
  const raid::LogicalSpace* space_ = nullptr;
};

}  // namespace gpu4fs::test

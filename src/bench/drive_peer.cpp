#include "bench/drive_peer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <vector>

#include "base/bits.hpp"
#include "base/host/json_value.hpp"
#include "base/limits.hpp"
#include "bench/client.hpp"
#include "bench/mounts.hpp"
#include "bench/result.hpp"

namespace gpu4fs::bench {

namespace {

class Fio final : public DrivePeer {
 public:
  const char* name() const override { return "fio"; }

  // fio counts the flush at the end of a write, and not its own start.
  DriveRate run(const std::string& path, const DriveLoad& load) const override {
    const char* direction = load.writes ? "write" : "read";
    std::vector<std::string> words{"fio", "--name=peer", "--ioengine=io_uring", "--direct=1", "--output-format=json"};
    words.push_back("--filename=" + path);
    words.push_back(fmt::format("--rw={}{}", load.is_random ? "rand" : "", direction));
    words.push_back(fmt::format("--size={}", load.file_bytes));
    words.push_back(fmt::format("--io_size={}", load.total_bytes));
    words.push_back(fmt::format("--bs={}", load.block_bytes));
    words.push_back(fmt::format("--iodepth={}", load.depth));
    if (load.writes) words.insert(words.end(), {"--end_fsync=1", "--fallocate=none"});
    const JsonValue report = parse_json(program_output(words));
    const JsonValue& jobs = report["jobs"];
    if (jobs.elements.size() != 1) throw std::runtime_error("fio reports no job");
    const JsonValue& job = jobs.elements[0];
    const JsonValue& transfers = job[direction];
    if (transfers["io_bytes"].number != static_cast<double>(load.total_bytes)) {
      throw std::runtime_error(fmt::format("fio transferred {} bytes", transfers["io_bytes"].number));
    }
    const double seconds = transfers["runtime"].number / 1e3;
    const double gigabytes = static_cast<double>(load.total_bytes) / 1e9;
    const double cpu_share = (job["usr_cpu"].number + job["sys_cpu"].number) / 100;
    return {gigabytes / seconds, cpu_share * seconds / gigabytes};
  }
};

class BareLoop final : public DrivePeer {
 public:
  const char* name() const override { return "io_uring"; }

  DriveRate run(const std::string& path, const DriveLoad& load) const override {
    const OpenFile file(path, (load.writes ? O_RDWR : O_RDONLY) | O_DIRECT);
    AlignedBytes buffers(load.depth * load.block_bytes);
    BareRing ring(load.depth);
    std::memset(buffers.data(), 1, load.depth * load.block_bytes);
    std::vector<u64> places;
    const u64 count = load.total_bytes / load.block_bytes;
    for (const u32 block : shuffled(static_cast<u32>(load.file_bytes / load.block_bytes), 1)) {
      if (places.size() < count) places.push_back((load.is_random ? block : places.size()) * load.block_bytes);
    }
    const double cpu_began = process_cpu_seconds();
    const double began = now_seconds();
    transfer(*ring.get(), file.get(), places, buffers.data(), load);
    if (load.writes && ::fsync(file.get()) != 0) fail_by_errno(path);
    const double gigabytes = static_cast<double>(places.size() * load.block_bytes) / 1e9;
    return {gigabytes / (now_seconds() - began), (process_cpu_seconds() - cpu_began) / gigabytes};
  }

 private:
  static void transfer(io_uring& ring, int file, const std::vector<u64>& places, u8* buffers, const DriveLoad& load) {
    u64 next = 0;
    u64 done = 0;
    const auto issue = [&](u64 slot) {
      io_uring_sqe* const entry = io_uring_get_sqe(&ring);
      const auto length = static_cast<unsigned>(load.block_bytes);
      u8* const memory = buffers + slot * load.block_bytes;
      load.writes ? io_uring_prep_write(entry, file, memory, length, places[next])
                  : io_uring_prep_read(entry, file, memory, length, places[next]);
      io_uring_sqe_set_data64(entry, slot);
      ++next;
    };
    while (next < places.size() && next < load.depth) issue(next);
    while (done < places.size()) {
      const int error = io_uring_submit_and_wait(&ring, 1);
      if (error < 0 && error != -EINTR) throw std::runtime_error(fmt::format("io_uring: {}", std::strerror(-error)));
      io_uring_cqe* entry = nullptr;
      while (io_uring_peek_cqe(&ring, &entry) == 0) {
        const i64 result = entry->res;
        const u64 slot = io_uring_cqe_get_data64(entry);
        io_uring_cqe_seen(&ring, entry);
        if (result != static_cast<i64>(load.block_bytes)) {
          throw std::runtime_error(fmt::format("io_uring: {} of {} bytes", result, load.block_bytes));
        }
        ++done;
        if (next < places.size()) issue(slot);
      }
    }
  }
};

}  // namespace

std::unique_ptr<DrivePeer> new_drive_peer(const std::string& kind) {
  if (kind == "bare") return std::make_unique<BareLoop>();
  try {
    run_program({"fio", "--version"}, true);
  } catch (const std::runtime_error&) {
    if (kind == "fio") throw std::runtime_error("there is no fio: install it, or compare with --peer bare");
    return std::make_unique<BareLoop>();
  }
  return std::make_unique<Fio>();
}

BareRing::BareRing(u32 depth) {
  const int error = io_uring_queue_init(depth, &ring_, 0);
  if (error < 0) throw std::runtime_error(fmt::format("io_uring: {}", std::strerror(-error)));
}

BareRing::~BareRing() {
  io_uring_queue_exit(&ring_);
}

i32 BareRing::take_result() {
  io_uring_cqe* entry = nullptr;
  if (io_uring_peek_cqe(&ring_, &entry) != 0) throw std::runtime_error("io_uring: an operation has not completed");
  const i32 result = entry->res;
  io_uring_cqe_seen(&ring_, entry);
  return result;
}

AlignedBytes::AlignedBytes(u64 length_bytes)
    : bytes_(static_cast<u8*>(std::aligned_alloc(page_size, align_up(length_bytes, page_size)))) {
  if (bytes_ == nullptr) throw std::bad_alloc();
}

void AlignedBytes::Release::operator()(u8* bytes) const {
  std::free(bytes);
}

void write_all_blocks(const std::string& path, u64 length_bytes) {
  constexpr u64 part_bytes = 4 << 20;
  const OpenFile file(path, O_WRONLY | O_CREAT | O_DIRECT);
  AlignedBytes part(part_bytes);
  std::memset(part.data(), 0xa5, part_bytes);
  for (u64 at = 0; at < length_bytes; at += part_bytes) {
    const u64 length = std::min(part_bytes, length_bytes - at);
    if (::pwrite(file.get(), part.data(), length, static_cast<off_t>(at)) != static_cast<ssize_t>(length)) {
      fail_by_errno(path);
    }
  }
  if (::fsync(file.get()) != 0) fail_by_errno(path);
}

}  // namespace gpu4fs::bench

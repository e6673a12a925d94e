// Scrub: the rate at which the engine verifies pages in place.
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "base/limits.hpp"
#include "bench/client.hpp"
#include "bench/parts.hpp"
#include "format/inode_format.hpp"
#include "frontend/local_session.hpp"

namespace gpu4fs::bench {
namespace {

constexpr double scrub_ratio_min = 0.8;

// Verifies all pages in use, like the server's scrub without a limit. Returns seconds.
double verify_pool(session::PoolInspector& inspector, const std::vector<session::ChunkRange>& chunks, u64* page_count) {
  *page_count = 0;
  const double began = now_seconds();
  for (u32 chunk = 0; chunk < chunks.size(); ++chunk) {
    for (u64 first = 0; first < chunks[chunk].page_count; first += session::PoolInspector::verify_page_max) {
      const u64 count = std::min(chunks[chunk].page_count - first, session::PoolInspector::verify_page_max);
      const auto verified = inspector.verify(chunk, first, count);
      if (verified.status != Status::ok) throw std::runtime_error(status_text(verified.status));
      if (verified.damaged_count != 0) throw std::runtime_error("a sound pool has damaged pages");
      *page_count += verified.page_count;
    }
  }
  return now_seconds() - began;
}

}  // namespace

void bench_scrub(BenchContext& context) {
  const u64 length = context.scale.file_bytes;
  const u32 file_count = context.scale.file_count;
  BenchClient client(frontend::open_local_session(context.server, length + BenchClient::control_bytes));
  fill_pattern(client.buffer(), 0, 0, length / page_size);
  for (u32 i = 0; i < file_count; ++i) {
    const u64 inode = client.create(format::inode_number_root, fmt::format("scrub-{}", i));
    client.stream(wire::Opcode::write, inode, length, context.scale.command_bytes(), 2, client.buffer_address(0));
  }
  client.sync();
  session::PoolInspector inspector = context.server.open_inspector();
  std::vector<double> rates;
  for (u32 repeat = 0; repeat <= context.scale.repeats; ++repeat) {
    u64 page_count = 0;
    const double seconds = verify_pool(inspector, context.server.chunk_ranges(), &page_count);
    if (page_count < file_count * length / page_size) throw std::runtime_error("pages were left out");
    if (repeat > 0) rates.push_back(static_cast<double>(page_count * page_size) / 1e9 / seconds);
  }
  for (u32 i = 0; i < file_count; ++i) client.unlink(format::inode_number_root, fmt::format("scrub-{}", i));
  client.sync();
  client.sync();
  BenchRow row;
  row.name = "scrub";
  row.what = fmt::format("scrub of {} files of {} MiB", file_count, length >> 20);
  row.unit = "GB/s";
  set_samples(row, rates);
  // Nothing is written, so the CPU's limit, which includes a copy, is not a real limit but a reference value.
  row.limit = context.on_gpu ? context.limits.device_gb_per_s : context.limits.read_gb_per_s;
  row.limit_what = context.on_gpu ? "bare kernel, host memory to VRAM" : context.limits.what;
  if (context.on_gpu) {
    if (row.value > 1.05 * row.limit) throw std::runtime_error("the scrub was faster than the bus");
    row.requirement = Requirement::at_least;
    row.required = scrub_ratio_min;
  }
  context.result.rows.push_back(std::move(row));
}

}  // namespace gpu4fs::bench

#include "fsck/check/engine_check.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <tuple>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "format/format_text.hpp"
#include "fsck/check/tree_reader.hpp"

namespace gpu4fs::fsck::check {

namespace {

using wire::CheckKind;
using wire::CheckPhase;
using wire::CheckRecord;

constexpr u32 slot_count = 16;
constexpr u64 input_bytes = u64{256} << 10;
constexpr u64 output_bytes = u64{512} << 10;
constexpr u64 pages_per_command = 128;               // of the inode file
constexpr u64 verified_per_command = u64{16} << 10;  // pages
constexpr u64 leak_pages_per_command = u64{1} << 20;
constexpr u64 inodes_per_command = 8 * 1024;
constexpr u32 check_deadline_ms = 24u * 3600 * 1000;
constexpr u64 data_begin = page_size;
static_assert(inodes_per_command * sizeof(wire::CheckInode) <= output_bytes);
static_assert(leak_pages_per_command / 8 <= output_bytes);

bool is_device_trouble(Status status) {
  return status == Status::device_failed || status == Status::medium_error || status == Status::io_error;
}

}  // namespace

u64 engine_check_session_bytes() {
  return data_begin + slot_count * (input_bytes + output_bytes);
}

EngineCheck::EngineCheck(CheckContext& context, session::ServerSession& session, const PageAddresses& inode_pages,
                         Reach reach)
    : context_(context), session_(session), reach_(std::move(reach)) {
  for (const auto& [index, address] : inode_pages) pages_.push_back({index, address});
  // Memory that a GPU can reach is allocated completely. So chunks and regions without pages in use are left out.
  for (const ChunkUse& use : context.chunks) {
    const bool has_pages = std::any_of(use.allocated.begin(), use.allocated.end(), [](u64 word) { return word != 0; });
    reached_.push_back(!use.has_bitmap ? Reached::all : has_pages ? Reached::regions_in_use : Reached::nothing);
  }
}

u8* EngineCheck::input(u32 slot) {
  return session_.producer().data + data_begin + slot * (input_bytes + output_bytes);
}
u8* EngineCheck::output(u32 slot) {
  return input(slot) + input_bytes;
}

wire::Command EngineCheck::command(CheckPhase phase, u32 slot) const {
  wire::Command command{};
  command.opcode = wire::Opcode::check;
  command.mode = static_cast<u32>(phase);
  command.deadline_ms = check_deadline_ms;
  const u64 begin = data_begin + slot * (input_bytes + output_bytes);
  command.data = wire::ring_address(0, begin);
  command.output = wire::ring_address(0, begin + input_bytes);
  command.length = output_bytes;
  return command;
}

// Several commands at a time; their answers are processed in order.
void EngineCheck::run_commands(std::size_t count, u32 in_flight, const Fill& fill, const Done& done) {
  std::deque<u64> positions;
  for (std::size_t next = 0, oldest = 0; oldest < count;) {
    if (next < count && next - oldest < in_flight) {
      const u32 slot = static_cast<u32>(next % slot_count);
      wire::Command command{};
      fill(next, slot, command);
      u64 position = 0;
      GPU4FS_CHECK(session_.producer().publish(command, &position) == Status::ok);
      session_.port().doorbell();
      positions.push_back(position);
      ++next;
      continue;
    }
    ring::Completion completion{};
    const u64 position = positions.front();
    const auto answered = [&] { return session_.producer().poll(position, &completion); };
    if (!session_.port().wait(position + 1, answered)) {
      throw pool::PoolError(Status::engine_died, "the engine died during the check");
    }
    positions.pop_front();
    done(oldest, static_cast<u32>(oldest % slot_count), completion);
    ++oldest;
  }
}

void EngineCheck::take_output(u32 slot) {
  wire::CheckCounts counts{};
  std::memcpy(&counts, output(slot), sizeof(counts));
  counts_.reached += counts.reached;
  counts_.verified += counts.verified;
  counts_.found += counts.found;
  counts_.names += counts.names;
  const u64 room = (output_bytes - sizeof(counts)) / sizeof(CheckRecord);
  if (counts.records > room) overflowed_ = true;
  const std::size_t before = records_.size();
  records_.resize(before + std::min(counts.records, room));
  if (records_.size() == before) return;
  std::memcpy(records_.data() + before, output(slot) + sizeof(counts),
              (records_.size() - before) * sizeof(CheckRecord));
}

// A chunk that cannot be read is left out; then reading its pages fails.
void EngineCheck::load_chunks() {
  const auto fill = [&](std::size_t item, u32 slot, wire::Command& request) {
    const ChunkUse& use = context_.chunks[item];
    const u64 page_count = context_.reader.chunk_page_count(static_cast<u32>(item));
    const u64 bytes = divide_up(page_count, 64) * sizeof(u64);
    if (2 * bytes > input_bytes)
      throw pool::PoolError(Status::not_supported, "a chunk is too large for the engine's check");
    request = command(CheckPhase::load, slot);
    request.inode = item;
    if (reached_[item] != Reached::nothing) {
      const bool all = reached_[item] == Reached::all;
      if (reach_) reach_(static_cast<u32>(item), all ? BitWords{} : use.allocated);
      request.mask = wire::check_mask_reach | (all ? wire::check_mask_reach_all : 0);
    }
    request.aux = 2 * bytes;
    if (use.has_bitmap) {
      std::memcpy(input(slot), use.allocated.data(), bytes);
    } else {
      std::memset(input(slot), 0xff, bytes);
    }
    std::memcpy(input(slot) + bytes, use.reached.data(), bytes);
  };
  run_commands(context_.chunks.size(), slot_count, fill, [](std::size_t, u32, const ring::Completion& completion) {
    if (completion.status == Status::ok || is_device_trouble(completion.status)) return;
    throw pool::PoolError(completion.status, "the engine cannot load the pool for the check");
  });
}

// A damaged map may lead to free pages. True: to some in chunks that were not completely reachable.
bool EngineCheck::reach_more_chunks() {
  bool found = false;
  for (const CheckRecord& record : records_) {
    if (record.kind != CheckKind::not_allocated) continue;
    const u32 chunk = context_.reader.locate(record.address)->chunk;
    found = found || reached_[chunk] != Reached::all;
    reached_[chunk] = Reached::all;
  }
  return found;
}

// Repeated if it needs more chunks, and in order if two pointers lead to one page: the second owner must not depend on
// timing.
void EngineCheck::walk(u32 mask) {
  for (bool in_order = false;;) {
    records_.clear();
    counts_ = {};
    load_chunks();
    run_pages(CheckPhase::walk, mask, in_order);
    if (overflowed_) return;
    const bool has_doubles = std::any_of(records_.begin(), records_.end(), [](const CheckRecord& record) {
      return record.kind == CheckKind::used_twice;
    });
    if (!reach_more_chunks() && (in_order || !has_doubles)) return;
    in_order = in_order || has_doubles;
  }
}

void EngineCheck::run_pages(CheckPhase phase, u32 mask, bool in_order) {
  const u64 share = in_order ? 1 : pages_per_command;
  const auto fill = [&](std::size_t item, u32 slot, wire::Command& request) {
    const u64 first = item * share;
    const u64 count = std::min<u64>(share, pages_.size() - first);
    request = command(phase, slot);
    request.mask = mask;
    request.aux = count * sizeof(wire::CheckInodePage);
    std::memcpy(input(slot), pages_.data() + first, request.aux);
  };
  const auto done = [&](std::size_t, u32 slot, const ring::Completion& completion) {
    if (completion.status != Status::ok) throw pool::PoolError(completion.status, "the engine cannot walk the inodes");
    take_output(slot);
    context_.pages_passed = counts_.reached;
    context_.report_progress(phase == CheckPhase::names ? "directories" : "inodes");
  };
  run_commands(divide_up(pages_.size(), share), in_order ? 1 : slot_count, fill, done);
}

struct EngineCheck::Phase {
  u32 chunk;
  u64 first;
  u64 count;
};

void EngineCheck::verify_pages() {
  std::vector<Phase> parts;
  for (u32 chunk = 0; chunk < context_.chunks.size(); ++chunk) {
    const u64 page_count = reached_[chunk] != Reached::nothing ? context_.reader.chunk_page_count(chunk) : 0;
    for (u64 page = 0; page < page_count; page += verified_per_command) {
      parts.push_back({chunk, page, std::min(verified_per_command, page_count - page)});
    }
  }
  const u64 before = counts_.verified;
  const auto fill = [&](std::size_t item, u32 slot, wire::Command& request) {
    request = command(CheckPhase::verify, slot);
    request.inode = parts[item].chunk;
    request.offset = parts[item].first;
    request.aux = parts[item].count;
  };
  const auto done = [&](std::size_t, u32 slot, const ring::Completion& completion) {
    if (completion.status != Status::ok) throw pool::PoolError(completion.status, "the engine cannot verify pages");
    take_output(slot);
    context_.pages_passed = counts_.verified - before;
    context_.report_progress("checksums");
  };
  run_commands(parts.size(), slot_count, fill, done);
}

// The engine's table becomes the input of the following phases.
void EngineCheck::read_table() {
  const u64 inode_count = pages_.empty() ? 0 : (pages_.back().index + 1) * format::inodes_per_page;
  const auto fill = [&](std::size_t item, u32 slot, wire::Command& request) {
    request = command(CheckPhase::table, slot);
    request.offset = item * inodes_per_command;
    request.aux = std::min(inodes_per_command, inode_count - request.offset);
  };
  const auto take = [&](u64 number, const wire::CheckInode& entry) {
    if (entry.mode == 0) return;
    context_.inode_masks[number / format::inodes_per_page] |=
        static_cast<u16>(1u << (number % format::inodes_per_page));
    InodeRecord& record = context_.inodes[number];
    record.inode = {entry.size_bytes, entry.parent, 0, entry.link_count, entry.mode};
    record.names = entry.names;
    record.subdirectories = entry.subdirectories;
    record.named_in = entry.named_in == 0 ? 0 : entry.named_in - 1;
    if (number >= format::inode_number_first_free) ++context_.result.inodes;
    if ((entry.mode & S_IFMT) != S_IFDIR) return;
    ++context_.result.directories;
    has_second_names_ |= entry.names > 1;
  };
  const auto done = [&](std::size_t item, u32 slot, const ring::Completion& completion) {
    if (completion.status != Status::ok) throw pool::PoolError(completion.status, "the engine's table cannot be read");
    const u64 first = item * inodes_per_command;
    const u64 count = std::min(inodes_per_command, inode_count - first);
    for (u64 i = 0; i < count; ++i) {
      wire::CheckInode entry{};
      std::memcpy(&entry, output(slot) + i * sizeof(entry), sizeof(entry));
      take(first + i, entry);
    }
  };
  for (const wire::CheckInodePage& page : pages_) context_.inode_masks[page.index] = page.index == 0 ? 0xffff : 0;
  for (const CheckRecord& record : records_) {
    if (record.kind != CheckKind::inode_page) continue;
    const auto page = std::make_unique<PageBuffer>();
    if (context_.reader.read_page(record.address, page.get()) != PageState::good)
      context_.inode_masks.erase(record.value);
  }
  run_commands(divide_up(inode_count, inodes_per_command), slot_count, fill, done);
}

// Pages that are allocated and not reached; afterwards context.chunks also contains this result.
void EngineCheck::find_leaks() {
  std::vector<Phase> parts;
  for (u32 chunk = 0; chunk < context_.chunks.size(); ++chunk) {
    ChunkUse& use = context_.chunks[chunk];
    if (!use.has_bitmap) continue;
    use.reached = use.allocated;
    const u64 page_count = context_.reader.chunk_page_count(chunk);
    for (u64 page = 0; page < page_count; page += leak_pages_per_command) {
      parts.push_back({chunk, page, std::min(leak_pages_per_command, page_count - page)});
    }
  }
  const auto fill = [&](std::size_t item, u32 slot, wire::Command& request) {
    request = command(CheckPhase::leaks, slot);
    request.inode = parts[item].chunk;
    request.offset = parts[item].first;
    request.aux = parts[item].count;
    std::memset(output(slot), 0, divide_up(parts[item].count, 64) * sizeof(u64));
  };
  const auto done = [&](std::size_t item, u32 slot, const ring::Completion& completion) {
    if (completion.status != Status::ok)
      throw pool::PoolError(completion.status, "the engine cannot compare the bitmaps");
    if (completion.result == 0) return;
    ChunkUse& use = context_.chunks[parts[item].chunk];
    for (u64 word = 0; word < divide_up(parts[item].count, 64); ++word) {
      u64 leaked = 0;
      std::memcpy(&leaked, output(slot) + word * sizeof(leaked), sizeof(leaked));
      use.reached[parts[item].first / 64 + word] &= ~leaked;
    }
  };
  run_commands(parts.size(), slot_count, fill, done);
}

bool EngineCheck::run() {
  const bool verifies = context_.options.check_data;
  const u32 mask = verifies ? wire::check_mask_verify_data : 0;
  walk(mask);
  if (overflowed_) return false;
  if (verifies) verify_pages();
  if (counts_.found != 0) run_pages(CheckPhase::owners, 0, false);
  run_pages(CheckPhase::names, 0, false);
  if (overflowed_) return false;
  read_table();
  find_leaks();
  context_.result.pages_used += counts_.reached;
  context_.result.pages_verified += counts_.verified;
  context_.result.names += counts_.names;
  explain();
  return true;
}

void EngineCheck::explain() {
  if (has_second_names_) {
    std::erase_if(records_, [](const CheckRecord& record) { return record.kind == CheckKind::directory; });
    for (const auto& [number, record] : context_.inodes) {
      if ((record.inode.mode & S_IFMT) != S_IFDIR) continue;
      CheckRecord look{};
      look.kind = CheckKind::directory;
      look.inode = number;
      records_.push_back(look);
    }
  }
  // Directories last, and nothing in the order in which workers found it.
  const auto key = [](const CheckRecord& record) {
    return std::tuple(record.kind == CheckKind::directory, record.inode, record.kind, record.value, record.address);
  };
  std::sort(records_.begin(), records_.end(),
            [&](const CheckRecord& a, const CheckRecord& b) { return key(a) < key(b); });
  for (const CheckRecord& record : records_) explain_record(record);
}

// For records about pages and pointers.
void EngineCheck::explain_block(const CheckRecord& record, const std::string& owner) {
  const std::string place = context_.reader.place_text(record.address);
  switch (record.kind) {
    case CheckKind::pointer:
      return context_.add(FindingId::pointer_malformed, owner,
                          fmt::format("slot of level {}, index {}: {}", record.level, record.value,
                                      format::to_text(format::BlockPointer{record.address})));
    case CheckKind::attribute_pointer:
      return context_.add(FindingId::pointer_malformed, owner,
                          "attributes: " + format::to_text(format::BlockPointer{record.address}));
    case CheckKind::outside:
      return context_.add(FindingId::page_outside, owner, fmt::format("pointer to {:#x}", record.address));
    case CheckKind::used_twice:
      return context_.add(
          FindingId::page_used_twice, place,
          fmt::format("{} of {} pages of {} are in use elsewhere too", record.value, record.expected, owner));
    case CheckKind::not_allocated:
      return context_.add(FindingId::page_not_allocated, place,
                          fmt::format("{} of {} pages of {}", record.value, record.expected, owner));
    default:
      return;
  }
}

void EngineCheck::explain_record(const CheckRecord& record) {
  const auto page = std::make_unique<PageBuffer>();
  const auto known = context_.inodes.find(record.inode);
  const std::string owner =
      known == context_.inodes.end() ? "inode file" : inode_place(record.inode, known->second.inode);
  if (record.kind == CheckKind::inode_page || record.kind == CheckKind::metadata) {
    (void)context_.read_metadata(record.address, owner, page.get());
    return;
  }
  explain_block(record, owner);
  format::Inode inode{};
  try {
    inode = read_inode(context_.reader, record.inode);
  } catch (const pool::PoolError&) {
    return;  // its page has been reported
  }
  switch (record.kind) {
    case CheckKind::fields:
      return check_inode_fields(context_, record.inode, inode);
    case CheckKind::summary:
      return check_inode_summary(context_, record.inode, inode, record.value, record.address, record.expected);
    case CheckKind::attribute_page:
      if (context_.reader.read_page(record.address, page.get()) == PageState::good)
        check_attribute_page(context_, owner, *page);
      return;
    case CheckKind::attribute_tree:
      return check_attribute_tree(context_, record.inode, inode);
    case CheckKind::data_page:
      return check_data_page(context_, record.inode, inode, record.address, record.value);
    case CheckKind::directory:
      return explain_directory(context_, record.inode, inode);
    default:
      return;
  }
}

}  // namespace gpu4fs::fsck::check

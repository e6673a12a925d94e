// From pages that do not match their checksum to the files that have lost something.
//
// A scrub verifies while everybody writes, and looks at every allocated page, so a page that does not match need
// not be damage (raid/verify_pages.hpp): it may belong to metadata that the running checkpoint has yet to write, be
// rewritten at this moment, or belong to an unwritten block and hold nothing. So, when there are such pages:
//   1. A checkpoint. Metadata is written then, and no page that was allocated before is rewritten in place.
//   2. They are verified again; most false suspects match now.
//   3. The tree is walked and each file's map is compared with what is left: unwritten blocks are struck off, what
//      is named as content or as a map page belongs to that file.
//   4. Another checkpoint, because files and metadata have moved during the walk, and a last look at what was named:
//      that is damage, and the engine's table takes it over.
// What no file names is damage without an owner if a directory or a map could not be read: it may lie below. If
// all could be read, nobody misses it: it came and went during the walk, is a file's without a name that is still
// open, or leaked. Host only.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "pool/page_runs.hpp"
#include "session/pool_inspector.hpp"

namespace gpu4fs::maintenance {

struct DamagedFile {
  std::string path;
  u64 inode;
  u64 page_count;
};

struct OwnedDamage {
  u64 page_count = 0;  // damaged pages, those without an owner included
  u64 ownerless_page_count = 0;
  std::vector<DamagedFile> files;  // in the order of the walk
  std::vector<std::string> unreadable;
  bool was_stopped = false;  // the suspects are as good as new
};

struct DamageSearch {
  session::PoolInspector& inspector;
  const std::vector<session::ChunkRange>& chunks;  // by index, ascending addresses
  bool data_has_checksums;
  bool may_checkpoint;
  std::function<bool()> is_stopped;  // asked now and then
};

// `suspects` are those that match neither before nor now.
OwnedDamage find_damage_owners(const DamageSearch& search, pool::PageRuns suspects);

}  // namespace gpu4fs::maintenance

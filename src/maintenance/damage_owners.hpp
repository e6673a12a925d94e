// Finds the files that damaged pages belong to.
//
// A scrub verifies while others write, and checks every allocated page. So a page that does not match need not be
// damage (raid/verify_pages.hpp): it may belong to metadata that the running checkpoint has yet to write, be rewritten
// at this moment, or belong to an unwritten block without content. If there are such pages:
//   1. A checkpoint. It writes metadata, and no page that was allocated before is rewritten in place.
//   2. They are verified again; most false suspects match this time.
//   3. The tree is walked and each file's map is compared with the remaining pages: unwritten blocks are removed, and a
//      page that is named as content or as a map page belongs to that file.
//   4. Another checkpoint, because files and metadata have moved during the walk, and a last verification of the named
//      pages: those that do not match are damage, and the engine's table records them.
// A page that no file names is damage without an owner if a directory or a map could not be read: it may belong to
// something below. If everything could be read, the page is not needed: it was allocated and freed during the walk,
// belongs to an open file without a name, or leaked. Host only.
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
  u64 page_count = 0;  // damaged pages, including those without an owner
  u64 ownerless_page_count = 0;
  std::vector<DamagedFile> files;  // in the order of the walk
  std::vector<std::string> unreadable;
  bool was_stopped = false;  // the suspects are still undecided
};

struct DamageSearch {
  session::PoolInspector& inspector;
  const std::vector<session::ChunkRange>& chunks;  // by index, ascending addresses
  bool data_has_checksums;
  bool may_checkpoint;
  std::function<bool()> is_stopped;  // called from time to time
};

// `suspects` are the pages that did not match before and still do not match.
OwnedDamage find_damage_owners(const DamageSearch& search, pool::PageRuns suspects);

}  // namespace gpu4fs::maintenance

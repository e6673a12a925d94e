// Who holds the lock on a file. Host only.
#pragma once

namespace gpu4fs::pool {

// True if nobody holds a flock(2) lock on the open file any more, or only processes that have ended: whoever waits for
// the end of a process is told before the system has let go of all of its memory, and of the files that it had mapped.
bool lock_is_being_released(int descriptor);

}  // namespace gpu4fs::pool

// Who holds the lock on a file. Host only.
#pragma once

namespace gpu4fs::pool {

// True if no process, or only processes that have ended or are udev's, hold a flock(2) lock on the open file. The end
// of a process is reported before the system has released all of its memory and the files that it had mapped.
bool lock_is_being_released(int descriptor);

}  // namespace gpu4fs::pool

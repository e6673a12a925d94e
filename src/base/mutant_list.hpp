// The mutants of this program. base/mutant.hpp makes its names from these rows, and tests/mutants/run_mutants.py reads
// them.
//
//   X(name, program, tests, what it breaks)
//
// `program` is the gtest program gpu4fs_<program>_test, `tests` the filter of the tests that have to fail with the
// mutant. Each name is used in one GPU4FS_MUTANT.
#pragma once

#define GPU4FS_MUTANT_LIST(X)                                                                                         \
  X(log_seed_kept, system, "LogSeed.*",                                                                               \
    "A mount records with the seed of the mount before: old records pass for new ones.")                              \
  X(log_not_written, system, "LogRecovery.ReplaysWhatWasSynced", "fsync answers and has written nothing.")            \
  X(log_not_flushed, system, "WriteOrder.*", "fsync answers before the devices have been flushed.")                   \
  X(log_start_kept, system, "LogRecovery.*:LogRing.*",                                                                \
    "A checkpoint leaves the records that it includes to be replayed.")                                               \
  X(log_digest_ignored, system, "LogRecovery.PagesThatWereNotWrittenEndTheLog",                                       \
    "A record is replayed whose pages were not written before the crash.")                                            \
  X(record_checksum_ignored, server, "LogRecords.*", "A damaged record is replayed.")                                 \
  X(record_lengths_ignored, server, "LogRecords.*", "A record may say that its parts reach beyond it.")               \
  X(record_order_ignored, server, "LogRecords.*", "A record may say that what comes behind it was durable.")          \
  X(record_time_ignored, server, "LogRecords.*", "A time that no clock shows is replayed.")                           \
  X(record_extents_ignored, server, "LogRecords.*",                                                                   \
    "The extents of a record may have more pages than the range that they fill.")                                     \
  X(record_type_ignored, server, "LogRecords.*",                                                                      \
    "A record makes an inode of a type that its operation does not make.")                                            \
  X(log_loss_not_told, system, "LogRecovery.DamageInFrontOfAcknowledgedRecordsIsToldAndDroppedOnDemand",              \
    "Acknowledged operations that the log has lost are dropped without a word.")                                      \
  X(log_gap_not_searched, system, "LogRecovery.DamageInFrontOfAcknowledgedRecordsIsToldAndDroppedOnDemand",           \
    "Nobody looks behind a gap of the log for what had been acknowledged.")                                           \
  X(durable_lsn_missing, system, "LogRecovery.DamageInFrontOfAcknowledgedRecordsIsToldAndDroppedOnDemand",            \
    "Records do not say what was durable when they were made.")                                                       \
  X(logged_pages_not_stable, system, "LogRecovery.PagesOfARecordAreNotOverwritten",                                   \
    "Pages that a record names are overwritten before a checkpoint has them.")                                        \
  X(replay_of_done_refused, system, "LogRecovery.WhatWasCarriedOutBeforeACheckpointIsCarriedOutAgain",                \
    "A recovery that was cut off cannot be repeated if it had removed an attribute.")                                 \
  X(flush_failure_ignored, system, "LostDevices.AFailedFlushLosesTheDevice",                                          \
    "A device that fails to flush is taken for good.")                                                                \
  X(pages_not_flushed, system, "WriteOrder.*", "A superblock is written before the pages that it names are durable.") \
  X(superblocks_not_flushed, system, "WriteOrder.*", "A checkpoint is published before its superblock is durable.")   \
  X(superblock_slot_swapped, system, "LogSeed.EveryMountForWritingHasItsOwn",                                         \
    "A superblock overwrites that of the epoch before.")                                                              \
  X(clean_too_early, system, "LogRecovery.DamageInFrontOfAcknowledgedRecordsIsToldAndDroppedOnDemand",                \
    "A pool in use is marked as unmounted.")                                                                          \
  X(stable_pages_overwritten, engine, "FileModel.CrashLeavesTheLastCheckpoint",                                       \
    "Pages that the durable checkpoint refers to are overwritten in place.")                                          \
  X(freed_pages_reused_at_once, fs, "CheckpointCrash.*",                                                              \
    "Freed pages that the durable checkpoint refers to are given out.")                                               \
  X(freed_pages_reused_early, space, "SpaceModel.*:SpaceFree.*",                                                      \
    "Pages freed behind the snapshot are given out when that checkpoint, which refers to them, is published.")        \
  X(trimmed_frames_stay_dirty, system, "*Discard.NothingIsWrittenToADiscardedRegion/*",                               \
    "Frames of the page cache with bytes of a discarded region are written to it afterwards.")                        \
  X(holes_given_out, system, "*FullDisk.*",                                                                           \
    "Pages in holes of a thin file are given out by the mount that found the holes.")                                 \
  X(takes_the_last_blocks, system, "*FullDisk.AMountWithoutTheOption*",                                               \
    "A file that does not fit takes all that is left before it is refused.")                                          \
  X(discard_rounded_outwards, block, "DiscardUnits.*", "A discard reaches beyond its range.")                         \
  X(durable_slot_overwritten, space, "SpaceLoad.*", "A checkpoint writes its bitmap over the one that counts.")       \
  X(lost_slot_counts, space, "SpaceLoad.*", "The bitmap of a checkpoint that never became valid counts.")             \
  X(refused_read_goes_on, device, "Transfer.*",                                                                       \
    "Bytes of a place that cannot be read are taken for what was written there.")                                     \
  X(refused_write_goes_on, device, "Transfer.*", "A write that a device has refused looks as if it was done.")        \
  X(io_slot_shared, device, "IoSlots.*", "Two ranks of a group put their requests into one slot of the I/O queue.")    \
  X(doorbell_without_fence, device, "IoQueueSchedules.*",                                                             \
    "A producer looks for sleeping consumers before its request is visible.")                                         \
  X(doorbell_of_awake_kept, device, "IoQueue.*", "A consumer that is awake finds its next sleep short.")              \
  X(doorbell_without_second_look, device, "IoQueueSchedules.*",                                                       \
    "A consumer sleeps without another look at the queue.")                                                           \
  X(completion_counted_too_late, device, "IoQueueSchedules.*",                                                        \
    "A thread that waits for I/O sleeps although a request has completed since it looked.")                           \
  X(requests_merged_over_gap, block, "RequestBatch.*", "Requests that do not follow each other are merged.")          \
  X(end_of_medium_is_no_error, block, "ControllerTest.ErrorsAreStatusAndText",                                        \
    "A read beyond the end of a medium is ok.")                                                                       \
  X(neighbours_fail_too, block, "ControllerTest.RequestsThatFailTogetherAreTriedAlone",                               \
    "An error of requests that were carried out together is the error of each of them.")                              \
  X(failed_write_is_done, block, "ControllerTest.ResultsOfTheSystemBecomeStatus",                                     \
    "A write that failed looks as if it was done.")                                                                   \
  X(end_leaves_requests, block, "ControllerTest.EndWaitsForRequestsInFlight",                                         \
    "A controller ends before all requests have completed.")                                                          \
  X(header_copy_unverified, raid, "Levels.*",                                                                         \
    "A damaged copy of a bitmap counts as a good one, because another one is good.")                                  \
  X(descriptor_copy_unverified, raid, "Levels.*",                                                                     \
    "A damaged copy of descriptors counts as a good one, because another one is good.")                               \
  X(descriptors_read_twice, space, "SpaceLoad.*", "Every mount reads all descriptors a second time, page by page.")   \
  X(good_copy_overwritten, raid, "Levels.AScrubRestoresHeaderAreas",                                                  \
    "A scrub restores copies of a header area from a damaged one.")                                                   \
  X(page_count_unchecked, space, "SpaceLoad.*", "A bitmap slot that was lost is not missed.")                         \
  X(descriptors_not_written, raid, "PageIo.*", "A checkpoint leaves out the checksums of pages that were written.")   \
  X(gate_not_drained, engine, "Gate.*", "A snapshot is taken while a commit is half done.")                           \
  X(failed_checkpoint_goes_on, system, "GroupCommit.FailedFlushIsToldToEverybody",                                    \
    "A pool takes changes after a checkpoint that could not be written.")                                             \
  X(change_beside_checkpoint, server, "CommitTimerTest.*",                                                            \
    "A change that ends during a checkpoint waits for the next command.")                                             \
  X(dirty_pages_evicted, fs, "PagesTable.*:PagesWalk.*:NamesEvicted.*",                                               \
    "Changed metadata pages are dropped from memory.")                                                                \
  X(processes_trusted, system, "ProcessSessions.CommandsHaveTheRightsOfTheProcessAndNoOthers",                        \
    "The engine believes which user a command of another process names.")                                             \
  X(session_memory_unsealed, system, "SessionSocket.TheLengthOfTheMemoryNeverChanges",                                \
    "A client cuts the memory that the engine reads.")                                                                \
  X(session_peer_unchecked, system, "SessionSocket.OtherUsersAreRefusedWhoeverMayConnect",                            \
    "Any user who reaches the session socket gets a session.")                                                        \
  X(session_socket_open, system, "SessionSocket.OtherUsersAreRefusedWhoeverMayConnect",                               \
    "Any user may connect to the session socket.")                                                                    \
  X(user_sessions_unbounded, system, "SessionSocket.LimitsAreKeptAndNamed", "One user takes all places of sessions.") \
  X(sleep_not_told, system, "ProcessSessions.ASubmittedCommandWakesASleepingEngine",                                  \
    "A client in another process believes that the engine is awake.")                                                 \
  X(end_not_seen, system, "ProcessSessions.TheEndOfTheServerIsSeen",                                                  \
    "A client takes the end of the server for the end of its command.")                                               \
  X(process_commands_unbounded, system, "SessionSocket.LimitsAreKeptAndNamed",                                        \
    "Sessions of processes take all places of commands.")                                                             \
  X(signal_is_an_end, system, "ProcessSessions.ASignalIsNoEndOfTheServer",                                            \
    "A client takes a signal for the end of the server.")                                                             \
  X(loss_not_recorded, system, "LostDevices.BeforeTheMount",                                                          \
    "Superblocks do not say that a device has missed writes.")                                                        \
  X(rename_lock_not_taken, engine, "RenameLock.*", "Two renames at once make a circle of directories.")               \
  X(rename_below_itself, engine, "NamespaceOracle.*:NamespaceStress.*", "A directory is moved below itself.")         \
  X(version_kept, engine, "Optimistic.*", "A lock that was held exclusively looks as if nobody had held it.")         \
  X(version_unchecked, engine, "Optimistic.*", "A read without a lock is answered though the file has changed.")      \
  X(chain_split, engine, "OptimisticBatches.*", "The first command of a chain is answered without the others.")       \
  X(chain_answered_in_part, engine, "OptimisticBatches.*", "Commands of a chain are answered twice.")                 \
  X(version_checked_late, engine, "Optimistic.*", "A client sees bytes that are not of its file any more.")           \
  X(era_ignored, engine, "Optimistic.*", "A place in memory is believed that may belong to another page by now.")     \
  X(place_outlives_file, engine, "KnownPages.*", "A page is read that belonged to the file before it changed.")       \
  X(name_outlives_change, engine, "KnownNames.*", "A name leads to a file that it no longer names.")                  \
  X(outdated_names_kept, engine, "KnownNames.*", "A path whose end was replaced goes the ordinary way for good.")     \
  X(known_without_rights, engine, "KnownNames.*", "Everybody finds names where somebody else may search.")            \
  X(leaf_edge_ignored, engine, "OptimisticNames.*", "A name behind the slots that were read is said to be missing.")  \
  X(long_read_outdated, engine, "LongReads.*", "A long read follows the plan of an earlier state of its file.")       \
  X(sleeper_woken_again, engine, "ParkingSchedules.*",                                                                \
    "Whoever has work for a worker that is waking up wakes it once more.")                                            \
  X(sleeper_not_counted, engine, "ParkingSchedules.*", "A worker goes to sleep and nobody knows.")                    \
  X(loaded_page_left, system, "*AbsentReads*", "A read whose page was loaded for it goes the ordinary way.")          \
  X(frame_believed, system, "*OptimisticReads*", "A frame is read without a lock, and no checksum proves it.")         \
  X(long_read_unverified, engine, "LongReads.*", "A long read gives bytes of a damaged page.")                        \
  X(strict_times_remembered, engine, "Optimistic.StrictAccessTimesAreNotRemembered",                                  \
    "With strict access times a read is not noted, because one at the same time was.")                                \
  X(walk_checks_its_end_alone, engine, "OptimisticNames.*", "A path is found that never existed.")                    \
  X(walk_needs_no_rights, engine, "OptimisticNames.*:OptimisticRights.*",                                             \
    "Everybody finds names in a closed directory.")                                                                   \
  X(access_list_overlooked, engine, "OptimisticRights.*", "A list of rights that denies is not read.")                \
  X(rights_remembered, engine, "OptimisticRightsOfSessions.*", "A file is read because somebody else may read it.")   \
  X(writers_share, engine, "CommandLockTest.*", "A writer gets a lock that readers hold.")                            \
  X(lock_not_handed_over, engine, "CommandLockTest.HandOverIsFirstInFirstOut",                                        \
    "Whoever waits for a lock waits for ever.")                                                                       \
  X(transient_reader_forgets, engine, "CommandLockTest.*:LockSchedules.*",                                            \
    "A writer waits for ever if a reader that had to queue was in its way.")                                          \
  X(passer_by_forgets, engine, "LockSchedules.*",                                                                     \
    "A writer waits for ever if a reader that did not wait was in its way.")                                          \
  X(locks_kept, engine, "LockedInode.*", "A command that has ended keeps its locks.")                                 \
  X(orphan_bit_kept, engine, "NewInode.ALinkToAGuessedNumberWaitsForTheTemporaryFile",                                \
    "A file that got a name is freed by the next mount.")                                                             \
  X(orphan_bit_missing, engine, "FileModel.OrphansAreFreedAtMount",                                                   \
    "A file without a name is never freed after a crash.")                                                            \
  X(parent_kept, engine, "NamespaceOracle.*:RenameLock.*", "A moved directory still says that it lies where it was.") \
  X(full_directory_removed, engine, "NamespaceOracle.*", "rmdir removes a directory with names in it.")               \
  X(full_directory_replaced, engine, "NamespaceOracle.*", "rename replaces a directory with names in it.")            \
  X(generation_kept, engine, "NumbersUsedAgain.*", "A handle of a deleted file leads to the new file of its number.") \
  X(reserved_inodes_named, engine, "NamespaceBasic.InodesThatClientsMustNotNameAreStale",                             \
    "A client reaches the bitmaps of the pool as if they were files.")                                                \
  X(access_granted, engine, "NamespaceRights.*", "Everybody may read and write every file.")                          \
  X(access_list_ignored, engine, "NamespaceRights.*", "An access control list that denies access is passed over.")    \
  X(owner_class_ignored, engine, "NamespaceRights.ModeBitsDecideAsInTheKernel",                                       \
    "The owner's bits of the mode do not count for the owner.")                                                       \
  X(groups_ignored, engine, "NamespaceRights.*", "Supplementary groups of a caller do not count.")                    \
  X(superuser_executes_anything, engine, "NamespaceRights.ModeBitsDecideAsInTheKernel",                               \
    "The superuser executes what nobody may execute.")                                                                \
  X(sticky_ignored, engine, "NamespaceRights.*", "Everybody removes the files of others from /tmp.")                  \
  X(group_not_handed_down, engine, "NamespaceRights.*", "A set-group-id directory does not hand down its group.")     \
  X(set_id_kept_by_writes, engine, "FileBasic.*:NamespaceRights.*",                                                   \
    "A program keeps its set-user-id bit although somebody else has written to it.")                                  \
  X(set_id_kept_by_chown, engine, "FileBasic.*:NamespaceRights.*",                                                    \
    "A program keeps its set-user-id bit for its new owner.")                                                         \
  X(set_gid_by_outsider, engine, "NamespaceRights.ModeAndOwnerAreChangedByWhomTheKernelLets",                         \
    "chmod sets the set-group-id bit for a group that the caller is not in.")                                         \
  X(mode_changed_by_anybody, engine, "NamespaceRights.ModeAndOwnerAreChangedByWhomTheKernelLets",                     \
    "Whoever does not own a file changes its mode.")                                                                  \
  X(owner_given_away, engine, "NamespaceRights.ModeAndOwnerAreChangedByWhomTheKernelLets",                            \
    "An owner gives a file to somebody else.")                                                                        \
  X(trusted_attributes_listed, engine, "NamespaceRights.AttributeSpacesHaveTheirOwnRules",                            \
    "Attributes of the administrator are shown to everybody.")                                                        \
  X(trusted_attributes_set, engine, "NamespaceRights.AttributeSpacesHaveTheirOwnRules",                               \
    "Everybody sets attributes of the administrator.")                                                                \
  X(caller_names_itself, engine, "NamespaceRights.*:Descriptors.*", "A client says who it is, and is believed.")      \
  X(server_commands_for_all, engine, "Descriptors.*", "A client sends commands of the server.")                       \
  X(replay_by_clients, engine, "Descriptors.*", "A client has records of its own replayed.")                          \
  X(sessions_share_memory, engine, "Counters.*",                                                                      \
    "Threads of sessions use one worker's memory together, and their counts get lost.")                               \
  X(sessions_not_counted, engine, "Counters.*", "What threads of sessions execute is in no sum.")                     \
  X(session_bounds_ignored, engine, "Probe.AddressesOutsideTheSessionAreRefused",                                     \
    "A command reads and writes memory behind its session's.")                                                        \
  X(read_only_ignored, engine, "NamespaceBasic.AReadOnlyPoolChangesNothing",                                          \
    "A pool that is mounted for reading changes.")                                                                    \
  X(control_peer_unchecked, session, "ControlSocketRights.*",                                                         \
    "Every user commands the server through its control socket.")                                                     \
  X(control_socket_open, session, "ControlSocketRights.*", "Every user may connect to the control socket.")           \
  X(control_clients_unbounded, session, "ControlSocketTest.ServesABoundedNumberAtATime",                              \
    "Clients of the control socket use up the threads of the server.")                                                \
  X(emergency_given_out, space, "SpaceModel.one_chunk", "A full pool has nothing left for commands that free space.") \
  X(abandoned_pages_lost, engine, "FileRounds.*", "Pages of a command that fails belong to nobody.")                  \
  X(promises_kept, engine, "FileBasic.*:FileModel.*",                                                                 \
    "A command that has ended keeps the space that it was promised.")                                                 \
  X(stripe_rotation_changed, raid, "Parities.*", "Parities stand on other columns than the format says.")             \
  X(parity_flag_missing, raid, "Parities.*", "Pages that are in the parities are not known to be.")                   \
  X(parity_replaced, raid, "Parities.*", "A page that is added to a row takes the others out of the parities.")       \
  X(snapshot_rows_changed, raid, "Parities.RowsOfASnapshotGetNoMorePages",                                            \
    "Parities that durable pages need are half written by a crash.")                                                  \
  X(reconstruction_unverified, raid, "Parities.*:RebuiltRows.*",                                                      \
    "A page that was made from a wrong parity is given out.")                                                         \
  X(page_unverified, raid, "PageIo.flipped_byte_is_never_given_out", "A damaged page is given out.")                  \
  X(run_unverified, raid, "PageIo.*:Levels.*", "Damaged pages in the middle of a long read are given out.")           \
  X(merge_unverified, raid, "PageIo.merging_with_a_damaged_page_fails_and_keeps_it",                                  \
    "What a write leaves of a damaged page gets a checksum that fits.")                                               \
  X(second_copy_missing, raid, "Levels.*", "A mirrored page is written to one device.")                               \
  X(copy_repair_not_written, raid, "RepairedPages.*", "A repair of a copy is counted and not written.")               \
  X(parity_repair_not_written, raid, "RepairedPages.*", "A repair of a parity is counted and not written.")           \
  X(wrong_copy_repaired, raid, "Levels.*:RepairedPages.*",                                                            \
    "The copy that is good is written again, and not the damaged one.")                                               \
  X(unsettled_pages_repaired, raid, "RepairedPages.*", "A scrub repairs a page that a command is writing.")           \
  X(older_uses_not_waited_for, base, "PhaseUsers.*",                                                                  \
    "A checkpoint or a flush does not wait for changes that are half made.")                                          \
  X(cache_pinned_line_evicted, cache, "CacheSchedules.*",                                                             \
    "The frame of a page that somebody uses is given to another page.")                                               \
  X(cache_written_line_evicted, cache, "CacheSchedules.*",                                                            \
    "A frame is filled with another page while it is being written to its device.")                                   \
  X(cache_dirty_line_evicted, cache, "CacheSchedules.*", "Changed pages are dropped before they are written.")        \
  X(cache_tag_ignored, cache, "CacheSchedules.*", "Whoever looks for a page gets the one that has replaced it.")      \
  X(cache_second_look_omitted, cache, "CacheSchedules.*", "Two that miss a page load it into two frames.")            \
  X(cache_set_stays_locked, cache, "CacheSchedules.*", "After a full set nobody gets a page of it.")                  \
  X(cache_failed_load_kept, cache, "CachePin.*:LineStates.*", "A page that could not be read is given out.")          \
  X(cache_pins_overflow, cache, "CachePin.*", "One pin too many leaves a page without pins.")                         \
  X(cache_verified_kept, cache, "CachePin.*", "Bytes that nobody has verified count as verified.")                    \
  X(cache_redirtied_line_cleaned, cache, "CacheSchedules.*", "Bytes that are stored during a write-back are lost.")   \
  X(cache_flush_not_waited_for, cache, "CacheSchedules.*", "A flush ends before its pages are written.")              \
  X(cache_flush_passes_failure, cache, "CacheFlush.*", "A flush ends although a page of it could not be written.")    \
  X(outdated_copy_kept, cache, "CopySchedules.*", "A copy that is filled while its page changes stays.")              \
  X(loading_copy_overlooked, cache, "CopySchedules.*", "Whoever changes a page does not see the copy on its way.")    \
  X(copy_looked_for_early, cache, "CopySchedules.*",                                                                  \
    "Whoever has changed a page looks for copies before others can see the change.")                                  \
  X(copies_not_dropped_after_write, raid, "*PageCopies.*", "A copy that was made while its page was written stays.")  \
  X(write_of_copied_page_unannounced, raid, "*PageCopies.*",                                                          \
    "Who writes a page of a device in memory leaves its copy.")                                                       \
  X(page_copied_at_first_read, raid, "*PageCopies.*", "A scan drives all copies out.")                                \
  X(copy_made_unverified, raid, "*PageCopies.*", "A damaged page gets a copy.")                                       \
  X(copy_believed, raid, "*PageCopies.*", "A copy that does not match the checksum is given out.")                    \
  X(dirty_set_cleared_after_look, cache, "CacheSchedules.*",                                                          \
    "A line that becomes dirty while its set is searched is never found again.")                                      \
  X(nvme_list_not_chained, nvme, "DataPointers.*", "The last entry of a full page of a list is taken for a frame.")   \
  X(nvme_ring_overfilled, nvme, "QueueSchedules.*", "A command is put over one that is not finished.")                \
  X(nvme_tail_passes_unmarked, nvme, "QueueSchedules.*", "The controller is shown an entry that is not complete.")    \
  X(nvme_older_entries_overtaken, nvme, "QueueSchedules.*",                                                            \
    "The holder of the tail shows its own entries although older ones in front of them are not complete.")             \
  X(nvme_mark_not_looked_for_again, nvme, "QueueSchedules.*",                                                         \
    "An entry that is marked while another moves the tail waits for the next poll.")                                  \
  X(nvme_phase_inverted, nvme, "QueueBadCompletions.*", "The phase of a completion is taken for its contrary.")       \
  X(nvme_generation_ignored, nvme, "QueueBadCompletions.*", "A late completion ends another command.")                \
  X(nvme_early_completion_taken, nvme, "QueueBadCompletions.*", "A command ends before the controller has seen it.")  \
  X(nvme_head_ignored, nvme, "QueueBadCompletions.*", "A submission head that cannot be is believed.")                \
  X(nvme_poll_token_kept, nvme, "Queue.*", "After a poll that finds nothing nobody takes completions.")               \
  X(nvme_mapper_takes_last_slot, nvme, "QueueMapper*", "A queue loses its last slot: no command goes to it.")         \
  X(drive_error_ignored, nvme, "DriveMedium.*", "A page that a drive cannot read counts as read.")                    \
  X(drive_report_lost, nvme, "DriveMedium.FlushesTell*",                                                              \
    "A request that nobody waits for has completed, and nobody is told.")                                             \
  X(shared_slots_forgotten, nvme, "SharedCommands.*", "Only the first request of a shared command ends.")             \
  X(shared_pages_exchanged, nvme, "SharedCommands.*", "Pages of a shared command are in the wrong order.")            \
  X(command_page_limit_ignored, nvme, "SharedCommands.*", "A shared command has more pages than its drive takes.")    \
  X(neighbourhoods_confused, nvme, "SharedCommands.*",                                                                \
    "After an error of a shared command pages elsewhere lose theirs, and its own fail again and again.")              \
  X(shared_error_blames_all, nvme, "SharedCommands.*",                                                                \
    "A page that its drive refuses takes its neighbours with it.")                                                    \
  X(aborted_request_lost, nvme, "DriveSilence.LateCommands*",                                                         \
    "A command that a drive has aborted counts as an error of the drive.")                                            \
  X(left_commands_forgotten, system, "BusDrives.*Reset",                                                              \
    "Commands that a drive has left before its reset have no end.")                                                   \
  X(loads_in_urgent_queue, nvme, "DriveClasses.EachHas*", "Whoever waits for the log waits behind loads of pages.")   \
  X(ended_pin_kept, device, "Pins.*", "A page that others load counts as one that the worker itself writes.")         \
  X(hints_fill_drive, nvme, "DriveMedium.HintsLeave*", "Whoever gives a hint waits for room in a queue.")             \
  X(drive_late_command_ignored, nvme, "DriveMedium.ADriveThatDoesNotAnswer*",                                         \
    "A drive that does not answer keeps its commands for ever.")                                                      \
  X(drive_answers_ignored, nvme, "DriveSilence.*", "A drive that answers one command after the other is given up.")   \
  X(drive_full_queue_trusted, nvme, "DriveSilence.*",                                                                 \
    "Whoever waits for a place in the queue of a silent drive waits for ever.")                                       \
  X(drive_answers_kept, nvme, "ServedDrive.*", "A slow emulated drive answers a long queue when all of it is done.")  \
  X(drive_medium_kept, session, "DirectMedia.*", "The file of a removed device stays open.")                          \
  X(failed_drive_kept, system, "DriveExchange.ADeviceIsRebuilt*", "A device is rebuilt on the drive that has failed.")\
  X(bus_reach_kept, system, "BusDrives.APoolIsMade*", "A drive reaches memory of an engine that has ended.")           \
  X(host_uses_engine_queues, system, "BusDrives.PartsOf*", "Code of the host submits to queues of the engine.")        \
  X(nvme_class_overfilled, nvme, "ClassSchedules.*", "A class has more commands at once than its share.")             \
  X(nvme_class_order_assumed, nvme, "ClassSchedules.*", "A command that was overtaken in its class waits for ever.")  \
  X(nvme_aborted_not_repeated, nvme, "BlockIo.AnAbort*", "A command that was aborted for its time is an error.")      \
  X(nvme_drive_token_ignored, nvme, "DriveSchedules.*", "Two workers of a drive take the same command.")              \
  X(nvme_left_enabled, nvme, "ControllerEnd.*", "The next driver of a drive finds the controller at work.")           \
  X(nvme_handover_not_undone, nvme, "HandoverOfDrives.*", "A drive that no driver takes is left without one.")        \
  X(nvme_take_without_iommu, nvme, "HandoverOfDrives.*", "A drive is taken that could reach all memory.")             \
  X(staged_store_not_marked, device, "Staged.*",                                                                      \
    "What is stored into a page of a staged device is not written to it.")                                            \
  X(flushed_line_not_written, device, "Staged.*", "A flush passes over frames with newer bytes.")                     \
  X(write_error_lost, device, "Staged.*", "Nobody learns that a page could not be written.")                          \
  X(direct_refusal_ignored, block, "BlockMedium.SomeRefuse*",                                                         \
    "A file system that accepts O_DIRECT and refuses the accesses cannot be used.")                                   \
  X(errors_of_all_awaited, block, "Kinds/ControllerTest.AMediumThat*",                                               \
    "Each write to a drive that has failed waits for an error of its own.")                                           \
  X(refused_at_once_again, device, "DetachedIo.ARefusedDevice*",                                                      \
    "Write-backs that the system refuses are tried again without a pause.")                                           \
  X(full_disk_is_dead, device, "DetachedIo.AWriteWithoutRoom*",                                                       \
    "A full file system below is a failed device.")                                                                   \
  X(refusal_is_error, device, "DetachedIo.WhatTheSystemRefuses*",                                                     \
    "A moment without memory is a failed device.")                                                                    \
  X(growing_page_not_copied, device, "DetachedIo.TheLastPage*",                                                       \
    "A page of the log changes while a medium computes its checksum.")                                                \
  X(outdated_page_brought_in, device, "Staged.AFailed*",                                                              \
    "Older bytes are read from a device to which newer ones could not be written.")                                   \
  X(frames_not_written_back, system, "ScrubRepairs.*", "A flush of the devices leaves out what is in frames.")        \
  X(frames_scrubbed, system, "ScrubRepairs.*", "A scrub looks at frames and not at the medium.")                      \
  X(pin_outlives_scope, device, "Staged.APageIsReadOnce*:Staged.ScopesEnd*", "A frame stays in use for ever.")        \
  X(pins_of_outer_scope_ended, device, "Staged.*", "A frame is given away although its user has not ended.")          \
  X(rest_of_page_not_kept, device, "Staged.*", "A transfer of a part of a page changes the rest of the page.")        \
  X(rebuild_row_skipped, raid, "RebuiltRows.*", "A rebuild passes over rows.")                                        \
  X(neighbour_page_read, raid, "PagesApart.AreVerifiedInPlace",                                                       \
    "The address of a page to read is computed from that of the first page of its run.")                              \
  X(neighbour_page_written, raid, "PagesApart.AreVerifiedInPlace",                                                    \
    "The address of a page to write is computed from that of the first page of its run.")                             \
  X(run_read_unannounced, raid, "PagesApart.AreVerifiedInPlace",                                                      \
    "A page is read that its device has not been told of.")                                                           \
  X(run_write_not_ended, raid, "PagesApart.AreVerifiedInPlace",                                                       \
    "A device is not told that a page of a run has been written.")                                                    \
  X(error_of_predecessor_kept, device, "DetachedIo.*", "A device is given up for an error of the one before it.")      \
  X(detached_error_lost, device, "DetachedIo.*", "An error of a page that is written behind is in no flush.")         \
  X(detached_flush_error_lost, device, "DetachedIo.*", "A device that could not be flushed counts as flushed.")       \
  X(load_waiter_not_told, device, "DetachedIo.*", "Who joins a load of somebody else is never told of its end.")      \
  X(loads_not_joined, device, "DetachedIo.*",                                                                         \
    "A command waits in its step for a page that somebody else loads, and holds its worker.")                         \
  X(round_ends_in_stripe, system, "*/StagedRows.*",                                                                   \
    "Rounds of a long write leave parts of stripes that nobody can use.")                                             \
  X(done_part_forgotten, system, "*/StagedRows.*",                                                                    \
    "A write that has stored a part of its bytes answers an error for all of them.")                                  \
  X(next_report_not_told, device, "DetachedIo.*",                                                                     \
    "Who waits for a transfer that others have begun is never restarted.")                                            \
  X(detached_generation_kept, device, "DetachedIo.*", "A transfer is ended because an earlier one has completed.")    \
  X(media_waiters_not_woken, engine, "MediaQueue.*", "A write waits for ever after the media were busy.")              \
  X(detached_owner_not_told, device, "DetachedIo.*", "A command is not restarted when its pages have been loaded.")   \
  X(failed_load_kept, device, "DetachedIo.*", "A page that could not be loaded looks as if it was.")                  \
  X(ahead_mark_kept, device, "LoadAhead.CountsWhat*",                                                                 \
    "A page that was used counts as one that waits for its first use.")                                               \
  X(dropped_ahead_uncounted, device, "LoadAhead.PagesLeave*",                                                         \
    "Pages that left their frames unread keep others from being loaded ahead.")                                       \
  X(ahead_fills_cache, device, "LoadAhead.HasAShare*", "Pages that nobody has asked for fill the page cache.")        \
  X(ahead_leaves_first, device, "LoadAhead.PagesLeave*",                                                              \
    "A page that is about to be read leaves before those that were read.")                                            \
  X(ahead_owner_told, device, "LoadAhead.*", "A command is restarted that has begun no load.")                        \
  X(ahead_page_counts_as_used, device, "LoadAhead.CountsWhat*", "A scan drives copies of pages out.")                 \
  X(any_read_is_sequential, engine, "ReadStreams.*", "Random readers cause loads that nobody needs.")                 \
  X(stream_not_protected, engine, "ReadStreams.AStreamOutlives*",                                                     \
    "Random reads beside a sequential one end its read-ahead.")                                                       \
  X(window_not_doubled, engine, "ReadStreams.Windows*", "The window of a sequential reader stays small.")             \
  X(window_not_limited, engine, "ReadStreams.Windows*", "The window of a sequential reader grows without a limit.")   \
  X(unwritten_loaded_ahead, system, "*ReadAhead.NothingIsLoaded*", "Pages are loaded that nobody has written.")       \
  X(command_not_followed, system, "*ReadAhead.LongerReads*", "Reads of several pages wait for the drive each time.")  \
  X(cancelled_write_kept, device, "Staged.*", "A page whose write was cancelled has the bytes of another page.")      \
  X(failed_copy_ended, raid, "*PagesApart.PagesWithoutAGoodCopy*",                                                    \
    "A page that could not be rebuilt on a staged device counts as written.")                                         \
  X(run_write_not_undone, raid, "PagesApart.WritesAreRefusedOneByOne",                                                \
    "Pages stay announced that are not written because one before them cannot be.")                                   \
  X(refused_page_read, raid, "PagesApart.ReadsAreRefusedOneByOne",                                                    \
    "A page is read although its device has refused it.")                                                             \
  X(old_page_verified_late, raid, "PagesApart.AreMerged",                                                             \
    "A page is merged in place after its other copies were given up.")                                                \
  X(row_output_not_ended, raid, "PagesApart.DevicesAreRebuilt",                                                       \
    "A device is not told that a page of a rebuilt row has been written.")                                            \
  X(part_announced_as_row, system, "*StagedRows.*",                                                                    \
    "Pages of a part of a row are written, and its parities are replaced.")                                           \
  X(row_write_unannounced, raid, "PagesApart.AreVerifiedInPlace", "Rows are written without telling the devices.")    \
  X(rebuild_page_skipped, system, "Rebuilt.ThenOthersAreLost", "A rebuild passes over pages of a mirror.")            \
  X(device_loss_unbounded, system, "LostDevices.OneTooManyIsAnError",                                                 \
    "A pool goes on without a device that it cannot do without.")                                                     \
  X(loss_acknowledged_early, system, "LostDevices.BetweenWritesAndSync",                                              \
    "What a lost device lacks is acknowledged before superblocks name the device.")                                   \
  X(scrub_of_one_copy, system, "ScrubRepairs.*", "A scrub looks at the first copy of a page only.")                   \
  X(scrub_without_parities, system, "ScrubRepairs.*", "A scrub does not look at parities.")                           \
  X(split_half_kept, fs, "NamesDirectory.*", "Names of a leaf that was split are not found.")                         \
  X(leaf_unchecked, fs, "NamesDamage.*", "A damaged leaf is changed as if it were sound.")                            \
  X(leaf_of_other_names, fs, "NamesDamage.IsRecognised",                                                              \
    "A directory's node leads to a leaf of other names, and theirs are not found.")                                   \
  X(map_height_kept, fs, "MapRandom.*", "An empty map keeps its height.")                                             \
  X(slots_not_moved_up, fs, "MapRandom.*", "A map that grows loses a block.")                                         \
  X(map_slot_unchecked, fs, "MapHostile.*", "A block outside of the pool is freed or read.")                          \
  X(large_block_miscounted, fs, "MapGiant.*:MapRandom.*", "A block of 2 MiB counts as one page of its file.")         \
  X(unwritten_read_as_data, engine, "FileBasic.AllocatedRangesReadAsZerosAndKeepTheirPages",                          \
    "What was in a block before it was allocated is given out.")                                                      \
  X(hole_too_wide, engine, "FileBasic.PunchedAndZeroedRangesReadAsZeros",                                             \
    "Punching a hole takes the page that the range begins in as a whole.")                                            \
  X(tail_not_zeroed, engine, "FileBasic.ShrinkingAndGrowingLeavesZeros",                                              \
    "What was cut off a file comes back when it grows.")                                                              \
  X(inode_unchecked, engine, "NamespaceBasic.DamagedInodesAreNotWorkedWith", "A damaged inode is worked with.")       \
  X(torn_descriptor_taken, ring, "Ring.*", "Half of a descriptor is executed.")                                       \
  X(chain_not_cancelled, engine, "Links.FailureCancelsTheRest",                                                       \
    "A command is executed although the one in front of it in its chain failed.")                                     \
  X(upcall_answer_of_another, engine, "Upcalls.*:ChunkMapping.*",                                                     \
    "The answer to a command that has ended goes to the next one in its place.")                                      \
  X(deadline_ignored, engine, "LockedInode.DeadlineEndsTheWaitAndLeavesTheLockIntact", "A command waits for ever.")   \
  X(last_checkpoint_skipped, system, "ScrubPool.*", "Unmounting leaves the last changes to the log or loses them.")   \
  X(superblock_not_completed, pool, "PoolOpen.*",                                                                     \
    "A device that a crash left without the newest superblock stays so.")                                             \
  X(superblock_unverified, pool, "PoolOpen.*", "A damaged superblock counts.")                                        \
  X(older_superblock_counts, pool, "PoolOpen.*", "A pool is mounted as it was one checkpoint ago.")                   \
  X(feature_accepted, pool, "PoolOpen.features_decide_who_may_mount",                                                 \
    "A pool with features that this version does not know is mounted.")                                               \
  X(stale_device_opened, pool, "PoolOpen.a_member_that_missed_an_epoch_is_refused",                                   \
    "A device that has missed writes is read.")                                                                       \
  X(second_history_opened, system, "HistoriesApart.*",                                                                \
    "Two halves of a pool that were written apart are mounted together.")                                             \
  X(tree_node_unverified, pool, "ChunkTreeTest.*", "A damaged node of the chunk tree counts.")                        \
  X(older_tree_replica_counts, pool, "ChunkTreeTest.*", "The older of two replicas of the chunk tree counts.")        \
  X(server_flushes_nothing, system, "WriteOrder.*", "The server answers that it has flushed and has not.")            \
  X(check_passes_second_owner, system, "CheckPoolTest.PagesUsedTwice",                                                \
    "fsck does not see that two files share a page.")                                                                 \
  X(check_passes_link_counts, system, "CheckPoolTest.InodeFields", "fsck does not see wrong link counts.")            \
  X(check_passes_leaks, system, "CheckPoolTest.BitmapAgainstReachablePages",                                          \
    "fsck does not see pages that belong to nobody.")                                                                 \
  X(check_passes_lost_inodes, system, "CheckPoolTest.InodeWithoutName",                                               \
    "fsck does not see files that no name leads to.")                                                                 \
  X(write_error_forgotten, frontend, "OpenFiles.*", "fsync does not report that changes were lost.")                  \
  X(open_file_reclaimed, frontend, "InodeTable.*", "A deleted file is freed while the kernel still refers to it.")    \
  X(route_hole_resident, route, "ResidencySearch.*",                                                                  \
    "A range with some pages in the page cache counts as resident.")                                                  \
  X(route_dirty_clean, route, "ResidencySearch.*", "A dirty page of the page cache counts as equal to the medium.")   \
  X(route_fit_one_size, route, "CostFit.SamplesThatSayNothingAreRefused",                                             \
    "A cost is fitted to transfers of one size.")                                                                     \
  X(route_fit_flattered, route, "CostFit.*", "R squared is near 1 whatever the sizes explain.")                       \
  X(route_outliers_count, route, "CostCorrection.*", "One interrupted transfer decides what a route costs.")          \
  X(route_medium_forgotten, route, "Schedule.*", "The medium's time does not count beside that of the page cache.")   \
  X(route_single_not_compared, route, "Schedule.GreedyIsNeverWorseThanASingleRoute",                                  \
    "A schedule may be slower than a single route.")                                                                  \
  X(route_dirty_read, route, "TransferSteps.*", "The medium is read where the page cache has newer bytes.")           \
  X(route_partition_grows, route, "ReadAhead*", "Read-ahead fills the page cache without a bound.")                   \
  X(route_advice_ignored, route, "ReadAhead*", "A file with the advice RANDOM is read ahead.")

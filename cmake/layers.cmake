# The layer order, bottom to top. This file is data for CMake, which links libraries by it, and for
# scripts/check_layers.py, which checks includes by it. A layer is a folder src/<layer>.
set(GPU4FS_LAYERS base format wire cache device replay block nvme raid space fs ring engine pool session maintenance
  server fsck route client frontend daemon cli tools bench)

# The layers that each layer may include besides itself; all of them must be before it in the order.
set(GPU4FS_base_INCLUDES)
set(GPU4FS_format_INCLUDES base)
set(GPU4FS_wire_INCLUDES base format)
set(GPU4FS_cache_INCLUDES base)
set(GPU4FS_device_INCLUDES base format cache)
set(GPU4FS_replay_INCLUDES base cache device)
set(GPU4FS_nvme_INCLUDES base device)
set(GPU4FS_block_INCLUDES base device)
set(GPU4FS_raid_INCLUDES base format wire device)
set(GPU4FS_space_INCLUDES base format device raid)
set(GPU4FS_fs_INCLUDES base format device raid space)
set(GPU4FS_ring_INCLUDES base format wire)
set(GPU4FS_engine_INCLUDES base format wire device raid space fs ring)
set(GPU4FS_pool_INCLUDES base format device nvme raid)
set(GPU4FS_session_INCLUDES base format wire device block nvme raid space fs ring engine pool)
set(GPU4FS_maintenance_INCLUDES base format wire raid space fs ring pool session)
set(GPU4FS_server_INCLUDES base format wire raid space fs ring engine pool session maintenance)
set(GPU4FS_fsck_INCLUDES base format wire raid pool session server)
set(GPU4FS_route_INCLUDES base)
set(GPU4FS_client_INCLUDES base format wire ring)
set(GPU4FS_frontend_INCLUDES base format wire ring pool session server client)
set(GPU4FS_daemon_INCLUDES base pool session server client frontend)
set(GPU4FS_cli_INCLUDES base)
set(GPU4FS_tools_INCLUDES base format device replay nvme raid space fs ring engine pool session maintenance server
  fsck route client frontend daemon cli)
set(GPU4FS_bench_INCLUDES base format wire cache device nvme raid space fs ring engine pool session maintenance server
  fsck client frontend cli)

# Folders of a layer, bottom to top, for layers whose folders have an order: files of a folder may lead, also through
# files of the layer that are in no folder, to those of lower folders and not of higher ones.
set(GPU4FS_engine_FOLDERS optimistic handlers poll)

# The public headers in include/gpu4fs/ are outside of the layers: the layers from client upwards may include them, and
# they may include these.
set(GPU4FS_public_INCLUDES base format wire device raid space fs ring engine client)

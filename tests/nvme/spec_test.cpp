// The structures and constants of device/nvme/spec against libnvme's, which were written independently.
#include <gtest/gtest.h>
#include <nvme/ioctl.h>
#include <nvme/types.h>

#include <cstring>

#include "device/nvme/spec/commands.hpp"
#include "device/nvme/spec/identify.hpp"
#include "device/nvme/spec/queue_entries.hpp"
#include "device/nvme/spec/registers.hpp"

namespace gpu4fs::nvme::test {
namespace {

#define EXPECT_SAME_FIELD(ours, member, theirs, their_member)        \
  EXPECT_EQ(offsetof(ours, member), offsetof(theirs, their_member)); \
  EXPECT_EQ(sizeof(ours::member), sizeof(theirs::their_member))

TEST(NvmeSpec, SubmissionEntries) {
  using Theirs = ::nvme_passthru_cmd;
  EXPECT_SAME_FIELD(SubmissionEntry, opcode, Theirs, opcode);
  EXPECT_SAME_FIELD(SubmissionEntry, flags, Theirs, flags);
  EXPECT_SAME_FIELD(SubmissionEntry, command_id, Theirs, rsvd1);
  EXPECT_SAME_FIELD(SubmissionEntry, namespace_id, Theirs, nsid);
  EXPECT_SAME_FIELD(SubmissionEntry, dword2, Theirs, cdw2);
  EXPECT_SAME_FIELD(SubmissionEntry, dword3, Theirs, cdw3);
  EXPECT_SAME_FIELD(SubmissionEntry, metadata, Theirs, metadata);
  EXPECT_EQ(offsetof(SubmissionEntry, data), offsetof(Theirs, addr));
  EXPECT_SAME_FIELD(SubmissionEntry, dword10, Theirs, cdw10);
  EXPECT_SAME_FIELD(SubmissionEntry, dword11, Theirs, cdw11);
  EXPECT_SAME_FIELD(SubmissionEntry, dword12, Theirs, cdw12);
  EXPECT_SAME_FIELD(SubmissionEntry, dword13, Theirs, cdw13);
  EXPECT_SAME_FIELD(SubmissionEntry, dword14, Theirs, cdw14);
  EXPECT_SAME_FIELD(SubmissionEntry, dword15, Theirs, cdw15);
}

TEST(NvmeSpec, IdentifyController) {
  using Theirs = ::nvme_id_ctrl;
  EXPECT_EQ(sizeof(IdentifyController), sizeof(Theirs));
  EXPECT_SAME_FIELD(IdentifyController, vendor, Theirs, vid);
  EXPECT_SAME_FIELD(IdentifyController, subsystem_vendor, Theirs, ssvid);
  EXPECT_SAME_FIELD(IdentifyController, serial, Theirs, sn);
  EXPECT_SAME_FIELD(IdentifyController, model, Theirs, mn);
  EXPECT_SAME_FIELD(IdentifyController, firmware, Theirs, fr);
  EXPECT_SAME_FIELD(IdentifyController, arbitration_burst, Theirs, rab);
  EXPECT_SAME_FIELD(IdentifyController, transfer_shift, Theirs, mdts);
  EXPECT_SAME_FIELD(IdentifyController, controller_id, Theirs, cntlid);
  EXPECT_SAME_FIELD(IdentifyController, version, Theirs, ver);
  EXPECT_SAME_FIELD(IdentifyController, abort_limit, Theirs, acl);
  EXPECT_SAME_FIELD(IdentifyController, submission_entry_sizes, Theirs, sqes);
  EXPECT_SAME_FIELD(IdentifyController, completion_entry_sizes, Theirs, cqes);
  EXPECT_SAME_FIELD(IdentifyController, commands_max, Theirs, maxcmd);
  EXPECT_SAME_FIELD(IdentifyController, namespace_count, Theirs, nn);
  EXPECT_SAME_FIELD(IdentifyController, optional_commands, Theirs, oncs);
  EXPECT_SAME_FIELD(IdentifyController, fused_commands, Theirs, fuses);
  EXPECT_SAME_FIELD(IdentifyController, format_attributes, Theirs, fna);
  EXPECT_SAME_FIELD(IdentifyController, write_cache, Theirs, vwc);
  EXPECT_SAME_FIELD(IdentifyController, atomic_write_blocks, Theirs, awun);
  EXPECT_SAME_FIELD(IdentifyController, atomic_write_blocks_power_fail, Theirs, awupf);
  EXPECT_SAME_FIELD(IdentifyController, sgl_support, Theirs, sgls);
}

TEST(NvmeSpec, IdentifyNamespace) {
  using Theirs = ::nvme_id_ns;
  EXPECT_EQ(sizeof(IdentifyNamespace), sizeof(Theirs));
  EXPECT_SAME_FIELD(IdentifyNamespace, size_blocks, Theirs, nsze);
  EXPECT_SAME_FIELD(IdentifyNamespace, capacity_blocks, Theirs, ncap);
  EXPECT_SAME_FIELD(IdentifyNamespace, used_blocks, Theirs, nuse);
  EXPECT_SAME_FIELD(IdentifyNamespace, features, Theirs, nsfeat);
  EXPECT_SAME_FIELD(IdentifyNamespace, format_count, Theirs, nlbaf);
  EXPECT_SAME_FIELD(IdentifyNamespace, format, Theirs, flbas);
  EXPECT_SAME_FIELD(IdentifyNamespace, metadata_capabilities, Theirs, mc);
  EXPECT_SAME_FIELD(IdentifyNamespace, protection, Theirs, dps);
  EXPECT_SAME_FIELD(IdentifyNamespace, sharing, Theirs, nmic);
  EXPECT_SAME_FIELD(IdentifyNamespace, deallocation, Theirs, dlfeat);
  EXPECT_SAME_FIELD(IdentifyNamespace, preferred_write_granularity, Theirs, npwg);
  EXPECT_SAME_FIELD(IdentifyNamespace, preferred_write_alignment, Theirs, npwa);
  EXPECT_SAME_FIELD(IdentifyNamespace, preferred_deallocate_granularity, Theirs, npdg);
  EXPECT_SAME_FIELD(IdentifyNamespace, preferred_deallocate_alignment, Theirs, npda);
  EXPECT_SAME_FIELD(IdentifyNamespace, optimal_write_size, Theirs, nows);
  EXPECT_SAME_FIELD(IdentifyNamespace, formats, Theirs, lbaf);
  EXPECT_SAME_FIELD(BlockFormat, metadata_bytes, ::nvme_lbaf, ms);
  EXPECT_SAME_FIELD(BlockFormat, data_shift, ::nvme_lbaf, ds);
  IdentifyNamespace data{};
  data.format = NVME_NS_FLBAS_META_EXT | 5 | 2 << 5;
  EXPECT_EQ(format_index(data), 5u + 2 * 16);
}

TEST(NvmeSpec, DatasetRanges) {
  EXPECT_EQ(sizeof(DatasetRange), sizeof(::nvme_dsm_range));
  EXPECT_SAME_FIELD(DatasetRange, attributes, ::nvme_dsm_range, cattr);
  EXPECT_SAME_FIELD(DatasetRange, blocks, ::nvme_dsm_range, nlb);
  EXPECT_SAME_FIELD(DatasetRange, first_block, ::nvme_dsm_range, slba);
  EXPECT_EQ(dataset_ranges_max, static_cast<u32>(NVME_DSM_MAX_RANGES));
}

template <class Ours>
u32 number(Ours value) {
  return static_cast<u32>(value);
}

TEST(NvmeSpec, Registers) {
  EXPECT_EQ(number(Register::cap), number(NVME_REG_CAP));
  EXPECT_EQ(number(Register::vs), number(NVME_REG_VS));
  EXPECT_EQ(number(Register::intms), number(NVME_REG_INTMS));
  EXPECT_EQ(number(Register::intmc), number(NVME_REG_INTMC));
  EXPECT_EQ(number(Register::cc), number(NVME_REG_CC));
  EXPECT_EQ(number(Register::csts), number(NVME_REG_CSTS));
  EXPECT_EQ(number(Register::aqa), number(NVME_REG_AQA));
  EXPECT_EQ(number(Register::asq), number(NVME_REG_ASQ));
  EXPECT_EQ(number(Register::acq), number(NVME_REG_ACQ));
  // Every bit alone, and their complements.
  for (u32 i = 0; i < 128; ++i) {
    const u64 cap = i < 64 ? u64{1} << i : ~(u64{1} << (i - 64));
    const Capabilities ours{cap};
    EXPECT_EQ(ours.queue_entries_max(), NVME_CAP_MQES(cap) + 1);
    EXPECT_EQ(ours.needs_contiguous_queues(), NVME_CAP_CQR(cap) != 0);
    EXPECT_EQ(ours.has_weighted_arbitration(), (NVME_CAP_AMS(cap) & NVME_CAP_AMS_WRR) != 0);
    EXPECT_EQ(ours.ready_timeout_ms(), NVME_CAP_TO(cap) * 500);
    EXPECT_EQ(ours.doorbell_stride_bytes(), 4u << NVME_CAP_DSTRD(cap));
    EXPECT_EQ(ours.has_nvm_command_set(), (NVME_CAP_CSS(cap) & NVME_CAP_CSS_NVM) != 0);
    EXPECT_EQ(ours.page_bytes_min(), u64{1} << (12 + NVME_CAP_MPSMIN(cap)));
    EXPECT_EQ(ours.page_bytes_max(), u64{1} << (12 + NVME_CAP_MPSMAX(cap)));
  }
  EXPECT_EQ(cc_enable, 1u << NVME_CC_EN_SHIFT);
  EXPECT_EQ(cc_page_shift, number(NVME_CC_MPS_SHIFT));
  EXPECT_EQ(cc_arbitration_weighted, number(NVME_CC_AMS_WRRU) << NVME_CC_AMS_SHIFT);
  EXPECT_EQ(cc_shutdown_mask, number(NVME_CC_SHN_MASK) << NVME_CC_SHN_SHIFT);
  EXPECT_EQ(cc_shutdown_normal, number(NVME_CC_SHN_NORMAL) << NVME_CC_SHN_SHIFT);
  EXPECT_EQ(cc_submission_shift, number(NVME_CC_IOSQES_SHIFT));
  EXPECT_EQ(cc_completion_shift, number(NVME_CC_IOCQES_SHIFT));
  EXPECT_EQ(csts_ready, 1u << NVME_CSTS_RDY_SHIFT);
  EXPECT_EQ(csts_fatal, 1u << NVME_CSTS_CFS_SHIFT);
  EXPECT_EQ(csts_shutdown_mask, number(NVME_CSTS_SHST_MASK) << NVME_CSTS_SHST_SHIFT);
  EXPECT_EQ(csts_shutdown_complete, number(NVME_CSTS_SHST_CMPLT) << NVME_CSTS_SHST_SHIFT);
}

TEST(NvmeSpec, OpcodesAndFeatures) {
  EXPECT_EQ(number(AdminOpcode::delete_submission_queue), number(nvme_admin_delete_sq));
  EXPECT_EQ(number(AdminOpcode::create_submission_queue), number(nvme_admin_create_sq));
  EXPECT_EQ(number(AdminOpcode::delete_completion_queue), number(nvme_admin_delete_cq));
  EXPECT_EQ(number(AdminOpcode::create_completion_queue), number(nvme_admin_create_cq));
  EXPECT_EQ(number(AdminOpcode::identify), number(nvme_admin_identify));
  EXPECT_EQ(number(AdminOpcode::abort), number(nvme_admin_abort_cmd));
  EXPECT_EQ(number(AdminOpcode::set_features), number(nvme_admin_set_features));
  EXPECT_EQ(number(AdminOpcode::get_features), number(nvme_admin_get_features));
  EXPECT_EQ(number(AdminOpcode::asynchronous_event), number(nvme_admin_async_event));
  EXPECT_EQ(number(IoOpcode::flush), number(nvme_cmd_flush));
  EXPECT_EQ(number(IoOpcode::write), number(nvme_cmd_write));
  EXPECT_EQ(number(IoOpcode::read), number(nvme_cmd_read));
  EXPECT_EQ(number(IoOpcode::write_zeroes), number(nvme_cmd_write_zeroes));
  EXPECT_EQ(number(IoOpcode::dataset_management), number(nvme_cmd_dsm));
  EXPECT_EQ(number(IdentifySelect::namespace_data), number(NVME_IDENTIFY_CNS_NS));
  EXPECT_EQ(number(IdentifySelect::controller), number(NVME_IDENTIFY_CNS_CTRL));
  EXPECT_EQ(number(IdentifySelect::active_namespaces), number(NVME_IDENTIFY_CNS_NS_ACTIVE_LIST));
  EXPECT_EQ(number(FeatureId::arbitration), number(NVME_FEAT_FID_ARBITRATION));
  EXPECT_EQ(number(FeatureId::volatile_write_cache), number(NVME_FEAT_FID_VOLATILE_WC));
  EXPECT_EQ(number(FeatureId::number_of_queues), number(NVME_FEAT_FID_NUM_QUEUES));
  const auto arbitration = [](u32 burst, u32 high, u32 medium, u32 low) {
    return burst << NVME_FEAT_ARBITRATION_BURST_SHIFT | high << NVME_FEAT_ARBITRATION_HPW_SHIFT |
           medium << NVME_FEAT_ARBITRATION_MPW_SHIFT | low << NVME_FEAT_ARBITRATION_LPW_SHIFT;
  };
  EXPECT_EQ(arbitration_of(5, 256, 7, 1), arbitration(5, 255, 6, 0));
  EXPECT_EQ(supports_dataset_management, number(NVME_CTRL_ONCS_DSM));
  EXPECT_EQ(supports_write_zeroes, number(NVME_CTRL_ONCS_WRITE_ZEROES));
  // libnvme has the upper half of dword 12.
  EXPECT_EQ(io_force_unit_access, number(NVME_IO_FUA) << 16);
  EXPECT_EQ(zeroes_deallocate, number(NVME_IO_DEAC) << 16);
  EXPECT_EQ(dataset_deallocate, number(NVME_DSMGMT_AD));
}

TEST(NvmeSpec, StatusCodes) {
  const auto code = [](u32 type, u32 value) { return type << NVME_SCT_SHIFT | value; };
  const u32 generic = NVME_SCT_GENERIC;
  const u32 specific = NVME_SCT_CMD_SPECIFIC;
  const u32 media = NVME_SCT_MEDIA;
  EXPECT_EQ(number(StatusCode::success), code(generic, NVME_SC_SUCCESS));
  EXPECT_EQ(number(StatusCode::invalid_opcode), code(generic, NVME_SC_INVALID_OPCODE));
  EXPECT_EQ(number(StatusCode::invalid_field), code(generic, NVME_SC_INVALID_FIELD));
  EXPECT_EQ(number(StatusCode::command_id_conflict), code(generic, NVME_SC_CMDID_CONFLICT));
  EXPECT_EQ(number(StatusCode::data_transfer_error), code(generic, NVME_SC_DATA_XFER_ERROR));
  EXPECT_EQ(number(StatusCode::power_loss), code(generic, NVME_SC_POWER_LOSS));
  EXPECT_EQ(number(StatusCode::internal_error), code(generic, NVME_SC_INTERNAL));
  EXPECT_EQ(number(StatusCode::abort_requested), code(generic, NVME_SC_ABORT_REQ));
  EXPECT_EQ(number(StatusCode::submission_queue_deleted), code(generic, NVME_SC_ABORT_QUEUE));
  EXPECT_EQ(number(StatusCode::invalid_namespace), code(generic, NVME_SC_INVALID_NS));
  EXPECT_EQ(number(StatusCode::invalid_prp_offset), code(generic, NVME_SC_PRP_INVALID_OFFSET));
  EXPECT_EQ(number(StatusCode::command_interrupted), code(generic, NVME_SC_CMD_INTERRUPTED));
  EXPECT_EQ(number(StatusCode::lba_out_of_range), code(generic, NVME_SC_LBA_RANGE));
  EXPECT_EQ(number(StatusCode::capacity_exceeded), code(generic, NVME_SC_CAP_EXCEEDED));
  EXPECT_EQ(number(StatusCode::namespace_not_ready), code(generic, NVME_SC_NS_NOT_READY));
  EXPECT_EQ(number(StatusCode::completion_queue_invalid), code(specific, NVME_SC_CQ_INVALID));
  EXPECT_EQ(number(StatusCode::queue_id_invalid), code(specific, NVME_SC_QID_INVALID));
  EXPECT_EQ(number(StatusCode::queue_size_invalid), code(specific, NVME_SC_QUEUE_SIZE));
  EXPECT_EQ(number(StatusCode::abort_limit_exceeded), code(specific, NVME_SC_ABORT_LIMIT));
  EXPECT_EQ(number(StatusCode::write_fault), code(media, NVME_SC_WRITE_FAULT));
  EXPECT_EQ(number(StatusCode::unrecovered_read_error), code(media, NVME_SC_READ_ERROR));
  EXPECT_EQ(number(StatusCode::access_denied), code(media, NVME_SC_ACCESS_DENIED));
  EXPECT_EQ(number(StatusCode::deallocated_block), code(media, NVME_SC_UNWRITTEN_BLOCK));
  CompletionEntry entry{};
  entry.status = static_cast<u16>(code(media, NVME_SC_READ_ERROR) << 1 | 1u);
  EXPECT_EQ(status_code_of(entry), number(StatusCode::unrecovered_read_error));
  EXPECT_EQ(phase_of(entry), 1u);
  EXPECT_FALSE(do_not_retry(entry));
  entry.status = static_cast<u16>(NVME_SC_DNR << 1);
  EXPECT_TRUE(do_not_retry(entry));
  EXPECT_EQ(status_code_of(entry), 0u);
}

}  // namespace
}  // namespace gpu4fs::nvme::test

// The whole block (NFSlicer, VII, Fig. 16): between a network port and the functions behind it. Streams of
// 256 or 512 bits: byte 0 of a frame is `tdata[7:0]`, all beats but the last are full, `tkeep` has no gaps
// and is never empty, `tuser` at the last beat says that the frame is bad. One clock for all ports.
`default_nettype none

// Icarus 11 knows no elaboration tasks; there the first moment of simulation has to do.
`ifdef __ICARUS__
`define ELABORATION_ERROR(TEXT) initial $fatal(1, TEXT);
`else
`define ELABORATION_ERROR(TEXT) $fatal(1, TEXT);
`endif

module slice_splice #(
    parameter int DATA_W      = 256,
    // Entries of the table, and bytes of payload that each holds: NFSlicer, VII.
    parameter int ENTRIES     = 250,
    parameter int MAX_PAYLOAD = 1454,
    // Bits of a token's tag, 24 to 40; the generation has 48 less these.
    parameter int TAG_W       = 24,
    // Follows from the width: nobody sets it.
    parameter int BYTES      = DATA_W / 8
) (
    input  wire logic              clk,
    // Ends all traffic and the time of all that waits; generations, key and settings stay.
    input  wire logic              rst,
    // Power-on.
    input  wire logic              cold_rst,

    input  wire logic              s_axis_net_tvalid,
    output wire logic              s_axis_net_tready,
    input  wire logic [DATA_W-1:0] s_axis_net_tdata,
    input  wire logic [BYTES-1:0]  s_axis_net_tkeep,
    input  wire logic              s_axis_net_tlast,
    input  wire logic              s_axis_net_tuser,

    output wire logic              m_axis_host_tvalid,
    input  wire logic              m_axis_host_tready,
    output wire logic [DATA_W-1:0] m_axis_host_tdata,
    output wire logic [BYTES-1:0]  m_axis_host_tkeep,
    output wire logic              m_axis_host_tlast,
    output wire logic              m_axis_host_tuser,

    input  wire logic              s_axis_host_tvalid,
    output wire logic              s_axis_host_tready,
    input  wire logic [DATA_W-1:0] s_axis_host_tdata,
    input  wire logic [BYTES-1:0]  s_axis_host_tkeep,
    input  wire logic              s_axis_host_tlast,
    input  wire logic              s_axis_host_tuser,

    output wire logic              m_axis_net_tvalid,
    input  wire logic              m_axis_net_tready,
    output wire logic [DATA_W-1:0] m_axis_net_tdata,
    output wire logic [BYTES-1:0]  m_axis_net_tkeep,
    output wire logic              m_axis_net_tlast,
    output wire logic              m_axis_net_tuser,

    input  wire logic              s_axil_awvalid,
    output wire logic              s_axil_awready,
    input  wire logic [7:0]        s_axil_awaddr,
    input  wire logic [2:0]        s_axil_awprot,
    input  wire logic              s_axil_wvalid,
    output wire logic              s_axil_wready,
    input  wire logic [31:0]       s_axil_wdata,
    input  wire logic [3:0]        s_axil_wstrb,
    output wire logic              s_axil_bvalid,
    input  wire logic              s_axil_bready,
    output wire logic [1:0]        s_axil_bresp,
    input  wire logic              s_axil_arvalid,
    output wire logic              s_axil_arready,
    input  wire logic [7:0]        s_axil_araddr,
    input  wire logic [2:0]        s_axil_arprot,
    output wire logic              s_axil_rvalid,
    input  wire logic              s_axil_rready,
    output wire logic [31:0]       s_axil_rdata,
    output wire logic [1:0]        s_axil_rresp
);
    localparam int BEAT_W   = $clog2(BYTES);
    // The first row begins with the end of the headers: at most BYTES - 2 bytes, since headers are even.
    localparam int ROWS     = (MAX_PAYLOAD + BYTES - 2 + BYTES - 1) / BYTES;
    localparam int ROW_W    = $clog2(ROWS + 1);
    localparam int ENTRY_W  = (ENTRIES > 1) ? $clog2(ENTRIES) : 1;
    localparam int RECORD_W = 80;
    localparam int LENGTH_W = $clog2(MAX_PAYLOAD + 1);
    localparam int DEPTH    = ENTRIES * ROWS;
    localparam int ADDR_W   = $clog2(DEPTH);
    localparam int EVENTS   = 22;
    // After power-on a packet waits long enough for the longest payload, with three cycles of gaps a beat.
    localparam int PATIENCE = (4 * ROWS > 256) ? 4 * ROWS : 256;

    generate
        if (DATA_W != 256 && DATA_W != 512) begin : g_bad_width
            `ELABORATION_ERROR("DATA_W is 256 or 512")
        end
        if (BYTES != DATA_W / 8) begin : g_bad_bytes
            `ELABORATION_ERROR("BYTES is DATA_W / 8, and nothing else")
        end
        if (ENTRIES < 2 || ENTRIES > 65536) begin : g_bad_entries
            `ELABORATION_ERROR("ENTRIES is 2 to 65536: a token's index has 16 bits")
        end
        if (TAG_W < 24 || TAG_W > 40) begin : g_bad_tag
            `ELABORATION_ERROR("TAG_W is 24 to 40")
        end
        if (MAX_PAYLOAD < 9 || MAX_PAYLOAD > 9600) begin : g_bad_payload
            `ELABORATION_ERROR("MAX_PAYLOAD is 9 to 9600")
        end
    endgenerate

    logic         slices, splices, marked_drop, key_load, table_reset, tokens_ready, forget;
    logic [15:0]  threshold, ttl, mtu, patience;
    logic [5:0]   marked_dscp;
    logic [127:0] key;
    logic [16:0]  waiting;

    logic                take, take_granted, expired, stored, stored_good, probe_ours;
    logic [RECORD_W-1:0] take_record, look_record;
    logic [15:0]         take_sum, look_sum;
    logic [ENTRY_W-1:0]  take_entry, look_entry, leave_entry, maker_entry;
    logic [63:0]         take_token, probe_token, look_token;
    logic [LENGTH_W-1:0] stored_bytes, look_bytes;
    logic                look_ours, look_waits, look_complete, claim, release_it, leave;
    logic [2:0]          look_refusal;
    logic                maker_made, put_first, put_tag;
    logic [47-TAG_W:0]   maker_generation, first;
    logic [TAG_W-1:0]    tag;
    logic [8:0]          in_events;
    logic [11:0]         out_events;

    logic               row_wen, row_ren;
    logic [ENTRY_W-1:0] write_entry, read_entry;
    logic [ROW_W-1:0]   write_row, read_row;
    logic [DATA_W-1:0]  write_data, read_data;
    logic               in_reset;
    assign in_reset = rst || cold_rst;

    registers #(.EVENTS(EVENTS), .PATIENCE(PATIENCE)) settings (
        .clk(clk), .rst(cold_rst),
        .s_axil_awvalid(s_axil_awvalid), .s_axil_awready(s_axil_awready), .s_axil_awaddr(s_axil_awaddr),
        .s_axil_awprot(s_axil_awprot), .s_axil_wvalid(s_axil_wvalid), .s_axil_wready(s_axil_wready),
        .s_axil_wdata(s_axil_wdata), .s_axil_wstrb(s_axil_wstrb), .s_axil_bvalid(s_axil_bvalid),
        .s_axil_bready(s_axil_bready), .s_axil_bresp(s_axil_bresp), .s_axil_arvalid(s_axil_arvalid),
        .s_axil_arready(s_axil_arready), .s_axil_araddr(s_axil_araddr), .s_axil_arprot(s_axil_arprot),
        .s_axil_rvalid(s_axil_rvalid), .s_axil_rready(s_axil_rready), .s_axil_rdata(s_axil_rdata),
        .s_axil_rresp(s_axil_rresp),
        .slices(slices), .splices(splices), .threshold(threshold), .ttl(ttl), .mtu(mtu), .marked_drop(marked_drop),
        .marked_dscp(marked_dscp), .patience(patience), .key(key), .key_load(key_load), .table_reset(table_reset),
        .tokens_ready(tokens_ready), .waiting(waiting), .events({expired, out_events, in_events})
    );

    token_maker #(.ENTRIES(ENTRIES), .TAG_W(TAG_W)) maker (
        .clk(clk), .rst(rst), .cold_rst(cold_rst), .key_load(key_load), .key(key), .ready(tokens_ready), .forget(forget),
        .entry(maker_entry), .generation(maker_generation), .made(maker_made), .put_first(put_first), .put_tag(put_tag),
        .first(first), .tag(tag)
    );

    metadata_table #(.ENTRIES(ENTRIES), .TAG_W(TAG_W), .RECORD_W(RECORD_W), .LENGTH_W(LENGTH_W)) entries (
        .clk(clk), .rst(in_reset), .cold_rst(cold_rst), .clear(table_reset || forget), .ready(tokens_ready), .ttl(ttl),
        .take(take), .take_record(take_record), .take_sum(take_sum), .take_granted(take_granted), .take_entry(take_entry), .take_token(take_token),
        .expired(expired), .stored(stored), .stored_good(stored_good), .stored_bytes(stored_bytes),
        .probe_token(probe_token), .probe_ours(probe_ours),
        .look_token(look_token), .look_ours(look_ours), .look_waits(look_waits), .look_complete(look_complete),
        .look_entry(look_entry), .look_record(look_record), .look_sum(look_sum), .look_bytes(look_bytes), .look_refusal(look_refusal),
        .claim(claim), .release_it(release_it), .leave(leave), .leave_entry(leave_entry),
        .maker_entry(maker_entry), .maker_generation(maker_generation), .maker_made(maker_made), .put_first(put_first),
        .put_tag(put_tag), .put_generation(first), .put_tag_bits(tag), .waiting(waiting)
    );

    slice_ingress #(
        .DATA_W(DATA_W), .MAX_PAYLOAD(MAX_PAYLOAD), .ROWS(ROWS), .ENTRY_W(ENTRY_W), .RECORD_W(RECORD_W), .LENGTH_W(LENGTH_W)
    ) ingress (
        .clk(clk), .rst(in_reset), .enable(slices), .guards(slices || splices), .threshold(threshold), .marked_drop(marked_drop), .marked_dscp(marked_dscp),
        .s_axis_tvalid(s_axis_net_tvalid), .s_axis_tready(s_axis_net_tready), .s_axis_tdata(s_axis_net_tdata),
        .s_axis_tkeep(s_axis_net_tkeep), .s_axis_tlast(s_axis_net_tlast), .s_axis_tuser(s_axis_net_tuser),
        .m_axis_tvalid(m_axis_host_tvalid), .m_axis_tready(m_axis_host_tready), .m_axis_tdata(m_axis_host_tdata),
        .m_axis_tkeep(m_axis_host_tkeep), .m_axis_tlast(m_axis_host_tlast), .m_axis_tuser(m_axis_host_tuser),
        .take(take), .take_record(take_record), .take_sum(take_sum), .take_granted(take_granted), .take_entry(take_entry), .take_token(take_token),
        .stored(stored), .stored_good(stored_good), .stored_bytes(stored_bytes),
        .probe_token(probe_token), .probe_ours(probe_ours),
        .row_wen(row_wen), .row_entry(write_entry), .row(write_row), .row_data(write_data), .events(in_events)
    );

    splice_egress #(
        .DATA_W(DATA_W), .ROWS(ROWS), .ENTRY_W(ENTRY_W), .RECORD_W(RECORD_W), .LENGTH_W(LENGTH_W)
    ) egress (
        .clk(clk), .rst(in_reset), .enable(splices), .mtu(mtu), .patience(patience),
        .s_axis_tvalid(s_axis_host_tvalid), .s_axis_tready(s_axis_host_tready), .s_axis_tdata(s_axis_host_tdata),
        .s_axis_tkeep(s_axis_host_tkeep), .s_axis_tlast(s_axis_host_tlast), .s_axis_tuser(s_axis_host_tuser),
        .m_axis_tvalid(m_axis_net_tvalid), .m_axis_tready(m_axis_net_tready), .m_axis_tdata(m_axis_net_tdata),
        .m_axis_tkeep(m_axis_net_tkeep), .m_axis_tlast(m_axis_net_tlast), .m_axis_tuser(m_axis_net_tuser),
        .look_token(look_token), .look_ours(look_ours), .look_waits(look_waits), .look_complete(look_complete),
        .look_entry(look_entry), .look_record(look_record), .look_sum(look_sum), .look_bytes(look_bytes), .look_refusal(look_refusal),
        .claim(claim), .release_it(release_it), .leave(leave), .leave_entry(leave_entry),
        .row_ren(row_ren), .row_entry(read_entry), .row(read_row), .row_data(read_data), .events(out_events)
    );

    // A row behind the last one of the last entry is asked for at the end of a payload, and not used.
    logic [ADDR_W-1:0] write_addr, read_addr, read_place;
    assign write_addr = ADDR_W'(write_entry) * ADDR_W'(ROWS) + ADDR_W'(write_row);
    assign read_place = ADDR_W'(read_entry) * ADDR_W'(ROWS) + ADDR_W'(read_row);
    assign read_addr  = read_row < ROW_W'(ROWS) ? read_place : '0;

    payload_ram #(.WIDTH(DATA_W), .DEPTH(DEPTH)) payloads (
        .clk(clk), .wen(row_wen), .waddr(write_addr), .wdata(write_data), .ren(row_ren), .raddr(read_addr), .rdata(read_data)
    );

`ifdef VERILATOR
    // For lint alone: a simulator would compute it at every change of every bit.
    logic unused;
    assign unused = &{1'b0, BEAT_W[0]};
`endif
endmodule

`default_nettype wire

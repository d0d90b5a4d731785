// Settings and counters behind AXI4-Lite, 32 bits a register. A write out of range changes nothing, is
// answered with SLVERR, and is counted. The key can be written, never read. With neither slicing nor splicing
// the mark means nothing, and stays.
//
// | address | register |
// |---|---|
// | 0x00 | read: 0x534C4943 |
// | 0x04 | bit 0 slices, 1 splices; once, read as 0: bit 2 loads the key, 3 gives up what waits |
// | 0x08 | read: bit 31 the tokens are ready, bits 16:0 payloads that wait |
// | 0x0C | threshold in bytes, 0 to 65535 |
// | 0x10 | TTL in turns of the index, 1 to 65535 |
// | 0x14 | longest IP packet that leaves, 68 to 65535 bytes |
// | 0x18 | marked packets that are not sliced: bit 8 drops them, bits 5:0 (0 to 62) are their new DSCP |
// | 0x1C | cycles that a packet waits for the rest of its payload, 0 to 65535 |
// | 0x20 to 0x2C | key, lowest word first |
// | 0x80 on | read: counters, in the order of `events`; the last one counts refused writes |
//
// A write of less than all four bytes is refused, too. Counters begin again at 0 behind 2^32 - 1.
`default_nettype none

module registers #(
    parameter int EVENTS   = 22,
    // After power-on a packet waits for so many cycles.
    parameter int PATIENCE = 256
) (
    input  wire logic              clk,
    input  wire logic              rst,

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
    output wire logic [1:0]        s_axil_rresp,

    output wire logic              slices,
    output wire logic              splices,
    output wire logic [15:0]       threshold,
    output wire logic [15:0]       ttl,
    output wire logic [15:0]       mtu,
    output wire logic              marked_drop,
    output wire logic [5:0]        marked_dscp,
    output wire logic [15:0]       patience,
    output wire logic [127:0]      key,
    output wire logic              key_load,
    output wire logic              table_reset,

    input  wire logic              tokens_ready,
    input  wire logic [16:0]       waiting,
    input  wire logic [EVENTS-1:0] events
);
    localparam logic [1:0] OKAY = 2'b00, SLVERR = 2'b10;

    logic [1:0]   control_reg, bresp_reg, rresp_reg;
    logic [15:0]  threshold_reg, ttl_reg, mtu_reg, patience_reg;
    logic [8:0]   marked_reg;
    logic [127:0] key_reg;
    logic         key_load_reg, table_reset_reg, bvalid_reg, rvalid_reg;
    logic [31:0]  rdata_reg;
    logic [31:0]  count_reg [EVENTS+1];
    logic [EVENTS-1:0] events_reg;

    assign {slices, splices} = {control_reg[0], control_reg[1]};
    assign threshold   = threshold_reg;
    assign ttl         = ttl_reg;
    assign mtu         = mtu_reg;
    assign marked_drop = marked_reg[8];
    assign marked_dscp = marked_reg[5:0];
    assign patience    = patience_reg;
    assign key         = key_reg;
    assign key_load    = key_load_reg;
    assign table_reset = table_reset_reg;

    logic        write, good;
    logic [31:0] value;
    assign write          = s_axil_awvalid && s_axil_wvalid && !bvalid_reg;
    assign s_axil_awready = write;
    assign s_axil_wready  = write;
    assign s_axil_bvalid  = bvalid_reg;
    assign s_axil_bresp   = bresp_reg;
    assign value          = s_axil_wdata;
    always_comb begin
        good = 1'b0;
        case (s_axil_awaddr)
            8'h04: good = value[31:4] == 28'd0;
            8'h0c, 8'h1c: good = value[31:16] == 16'd0;
            8'h10: good = value[31:16] == 16'd0 && value != 32'd0;
            8'h14: good = value[31:16] == 16'd0 && value >= 32'd68;
            8'h18: good = (value & ~32'h13f) == 32'd0 && value[5:0] != 6'd63;
            8'h20, 8'h24, 8'h28, 8'h2c: good = 1'b1;
            default: good = 1'b0;
        endcase
        if (s_axil_wstrb != 4'hf) good = 1'b0;
    end

    logic        read;
    logic [31:0] found;
    logic        known;
    logic [7:0]  counter;
    assign read           = s_axil_arvalid && !rvalid_reg;
    assign s_axil_arready = read;
    assign s_axil_rvalid  = rvalid_reg;
    assign s_axil_rdata   = rdata_reg;
    assign s_axil_rresp   = rresp_reg;
    assign counter        = {3'd0, s_axil_araddr[6:2]};
    always_comb begin
        known = 1'b1;
        found = 32'd0;
        case (s_axil_araddr)
            8'h00: found = 32'h534c4943;
            8'h04: found = {30'd0, control_reg};
            8'h08: found = {tokens_ready, 14'd0, waiting};
            8'h0c: found = {16'd0, threshold_reg};
            8'h10: found = {16'd0, ttl_reg};
            8'h14: found = {16'd0, mtu_reg};
            8'h18: found = {23'd0, marked_reg};
            8'h1c: found = {16'd0, patience_reg};
            default: begin
                known = s_axil_araddr[7] && s_axil_araddr[1:0] == 2'd0 && counter <= 8'(EVENTS);
                if (known) found = count_reg[counter[4:0]];
            end
        endcase
    end

    integer n;
    always_ff @(posedge clk) begin
        key_load_reg    <= 1'b0;
        table_reset_reg <= 1'b0;
        if (s_axil_bready) bvalid_reg <= 1'b0;
        if (s_axil_rready) rvalid_reg <= 1'b0;
        // Counted a cycle later, so that what decides on them has its cycle for itself.
        events_reg <= events;
        for (n = 0; n < EVENTS; n = n + 1) begin
            if (events_reg[n]) count_reg[n] <= count_reg[n] + 32'd1;
        end
        if (write) begin
            bvalid_reg <= 1'b1;
            bresp_reg  <= good ? OKAY : SLVERR;
            if (!good) count_reg[EVENTS] <= count_reg[EVENTS] + 32'd1;
            if (good) begin
                case (s_axil_awaddr)
                    8'h04: begin
                        control_reg     <= value[1:0];
                        key_load_reg    <= value[2];
                        table_reset_reg <= value[3];
                    end
                    8'h0c: threshold_reg <= value[15:0];
                    8'h10: ttl_reg <= value[15:0];
                    8'h14: mtu_reg <= value[15:0];
                    8'h18: marked_reg <= value[8:0];
                    8'h1c: patience_reg <= value[15:0];
                    8'h20: key_reg[31:0] <= value;
                    8'h24: key_reg[63:32] <= value;
                    8'h28: key_reg[95:64] <= value;
                    8'h2c: key_reg[127:96] <= value;
                    default: ;
                endcase
            end
        end
        if (read) begin
            rvalid_reg <= 1'b1;
            rdata_reg  <= found;
            rresp_reg  <= known ? OKAY : SLVERR;
        end
        if (rst) begin
            events_reg      <= '0;
            control_reg     <= 2'b00;
            threshold_reg   <= 16'd500;
            ttl_reg         <= 16'd10;
            mtu_reg         <= 16'd1500;
            marked_reg      <= 9'd0;
            patience_reg    <= 16'(PATIENCE);
            bvalid_reg      <= 1'b0;
            rvalid_reg      <= 1'b0;
            key_load_reg    <= 1'b0;
            table_reset_reg <= 1'b0;
            for (n = 0; n <= EVENTS; n = n + 1) count_reg[n] <= 32'd0;
        end
    end

`ifdef VERILATOR
    // For lint alone: a simulator would compute it at every change of every bit.
    logic unused;
    assign unused = &{1'b0, s_axil_awprot, s_axil_arprot};
`endif
endmodule

`default_nettype wire

// The memory of payloads: one port that writes, one that reads, as SRAM compilers and FPGA block memories
// make it. What was read stays at `rdata` until the next read. A vendor's macro replaces this module; its
// contents are never reset.
`default_nettype none

module payload_ram #(
    parameter int WIDTH = 256,
    parameter int DEPTH = 11750,
    parameter int ADDR_W = $clog2(DEPTH)
) (
    input  wire logic              clk,

    input  wire logic              wen,
    input  wire logic [ADDR_W-1:0] waddr,
    input  wire logic [WIDTH-1:0]  wdata,

    input  wire logic              ren,
    input  wire logic [ADDR_W-1:0] raddr,
    output wire logic [WIDTH-1:0]  rdata
);
    logic [WIDTH-1:0] mem [DEPTH];
    logic [WIDTH-1:0] rdata_reg;

    assign rdata = rdata_reg;

    always_ff @(posedge clk) begin
        if (wen) mem[waddr] <= wdata;
        if (ren) rdata_reg <= mem[raddr];
    end
endmodule

`default_nettype wire

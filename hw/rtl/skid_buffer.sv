// A register slice of an AXI4-Stream: the output is registered and so is `s_ready`, and no cycle is lost
// between beats. It is the boundary of both pipelines: the next block's `ready` ends here and starts no long
// path.
`default_nettype none

module skid_buffer #(
    parameter int WIDTH = 256
) (
    input  wire logic             clk,
    input  wire logic             rst,

    input  wire logic             s_valid,
    output wire logic             s_ready,
    input  wire logic [WIDTH-1:0] s_data,

    output wire logic             m_valid,
    input  wire logic             m_ready,
    output wire logic [WIDTH-1:0] m_data
);
    logic             out_valid_reg, out_valid_next;
    logic             spare_valid_reg, spare_valid_next;
    logic [WIDTH-1:0] out_reg, out_next, spare_reg, spare_next;

    assign s_ready = !spare_valid_reg;
    assign m_valid = out_valid_reg;
    assign m_data  = out_reg;

    always_comb begin
        out_valid_next   = out_valid_reg;
        spare_valid_next = spare_valid_reg;
        out_next         = out_reg;
        spare_next       = spare_reg;
        if (m_ready || !out_valid_reg) begin
            out_valid_next   = spare_valid_reg || s_valid;
            out_next         = spare_valid_reg ? spare_reg : s_data;
            spare_valid_next = 1'b0;
        end else if (s_valid && !spare_valid_reg) begin
            spare_valid_next = 1'b1;
            spare_next       = s_data;
        end
    end

    always_ff @(posedge clk) begin
        out_reg         <= out_next;
        spare_reg       <= spare_next;
        out_valid_reg   <= out_valid_next;
        spare_valid_reg <= spare_valid_next;
        if (rst) begin
            out_valid_reg   <= 1'b0;
            spare_valid_reg <= 1'b0;
        end
    end
endmodule

`default_nettype wire
